"""Newton-Schulz orthogonalisation of a stack of matrices: the inner loop of Muon.

Every matrix of a stack is moved towards the nearest (semi-)orthogonal one, independently of the others, by a few steps
of an odd quintic polynomial. The norm is always float32; the matrix products run in a chosen dtype.
"""

from pallas_kernels.newton_schulz.polynomials import Coefficients, coefficients
from pallas_kernels.newton_schulz.stacks import newton_schulz, newton_schulz_stacks
from pallas_kernels.newton_schulz.xla import EPSILON

__all__ = ["EPSILON", "Coefficients", "coefficients", "newton_schulz", "newton_schulz_stacks"]
