"""Replica groups in every form that XLA prints, and the mesh axes they are."""

import pytest

from k2jax.aot.hlo.replica_groups import mesh_axes, replica_groups


@pytest.mark.parametrize(
    ("printed", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, dimensions={0}", ((0, 2), (1, 3))),
        ("replica_groups={}, to_apply=%add", ((0, 1, 2, 3),)),
        ("replica_groups=[2,2]<=[4], dimensions={0}", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("replica_groups=[4,2]<=[2,2,2]T(2,0,1)", ((0, 2), (4, 6), (1, 3), (5, 7))),
        ("source_target_pairs={{0,1},{1,0}}, metadata={}", ((0, 1), (1, 0))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}, use", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'b','a'}, use", ((0, 1, 2, 3),)),
        # Places of the mesh hold other devices: [[0, 2], [1, 3]].
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}, use", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}, use", ((3, 1), (2, 0))),
        # Half of an axis of 4: outer halves are 2 apart.
        ("replica_groups=mesh['a'=4] {'a':(1)2}, use", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=4] {'a':(2)2}, use", ((0, 1), (2, 3))),
        ("replica_groups=@mesh<a=2,b=2> {a}, use", ((0, 2), (1, 3))),
    ],
)
def test_every_printed_form(printed, groups):
    assert replica_groups(printed, 4) == groups


def test_groups_that_are_not_there_are_an_error():
    with pytest.raises(ValueError, match="no replica groups"):
        replica_groups("dimensions={0}", 4)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (((0, 1), (2, 3), (4, 5), (6, 7)), "expert"),
        (((0, 2), (1, 3), (4, 6), (5, 7)), "stage"),
        (((0, 4), (1, 5), (2, 6), (3, 7)), "data"),
        (((0, 1, 4, 5), (2, 3, 6, 7)), "data+expert"),
        (((0, 1, 2, 3, 4, 5, 6, 7),), "data+stage+expert"),
        (((0, 1, 2), (3,)), "stage+expert?"),
        (((0,), (1,)), "none"),
    ],
)
def test_the_axes_of_a_mesh(groups, axes):
    assert mesh_axes(groups, [("data", 2), ("stage", 2), ("expert", 2)]) == axes
