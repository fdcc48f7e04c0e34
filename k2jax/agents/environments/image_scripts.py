"""Programs of a shell and git that prepare a repository on an image, and read what an agent has changed in it.

An image need have nothing else: its Python may be old, broken, or not there. Each program is given folders and ids as
arguments, ends with code 9 and a line of its own where it refuses an image, and obeys no configuration of git but that
of the repository.
"""

_PRELUDE = r"""
set -eu
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_CONFIG_COUNT
unset GIT_EXTERNAL_DIFF GIT_DIFF_OPTS XDG_CONFIG_HOME GIT_TRACE GIT_NAMESPACE GIT_REPLACE_REF_BASE
export LC_ALL=C HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1
export GIT_TERMINAL_PROMPT=0 GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_TEMPLATE_DIR= GIT_PAGER=cat
refuse() { echo "$1" >&2; exit 9; }
g() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c gc.auto=0 "$@"; }
command -v git >/dev/null 2>&1 || refuse "it has no git"
"""

INSPECT = (
    _PRELUDE
    + r"""
folder=$1
if [ -z "$folder" ]; then folder=$(g rev-parse --show-toplevel 2>/dev/null) || folder=/testbed; fi
[ -d "$folder/.git" ] || refuse "$folder has no folder .git"
prefix=
for root in /opt/miniconda3 /opt/conda /opt/anaconda3 /root/miniconda3; do
  if [ -z "$prefix" ] && [ -d "$root/envs/testbed/bin" ]; then prefix=$root/envs/testbed; fi
done
printf '%s\n' "$folder" "$prefix" "$PATH"
"""
)
"""Prints the folder of the repository, that of a conda environment ``testbed``, and PATH. Its argument is the folder,
or empty: then it is the repository around the image's working folder, or ``/testbed``."""

PREPARE = (
    _PRELUDE
    + r"""
folder=$1 base=$2 known=$3
cd "$folder"
[ ! -e .git/reftable ] || refuse "$folder keeps its references in a reftable, which is not supported"
if g config --get extensions.partialclone >/dev/null 2>&1 || ls .git/objects/pack/*.promisor >/dev/null 2>&1; then
  refuse "$folder is a partial clone, which is not supported"
fi
g cat-file -e "$base^{commit}" 2>/dev/null || refuse "the base commit $base is not in $folder"
rm -f .git/*.lock
head=$(g rev-parse --verify -q HEAD) || head=
if [ "$head" != "$base" ] && [ "$(g log -1 --format='%P %s' HEAD 2>/dev/null)" != "$base SWE-bench" ]; then
  g checkout -q -f --detach "$base" >&2
  head=$base
fi
own=$(mktemp -d)
export GIT_INDEX_FILE="$own/index"
if [ -f .git/index ]; then cp .git/index "$GIT_INDEX_FILE"; else g read-tree "$head"; fi
g add -u >&2
start=$(g write-tree)
g for-each-ref --merged="$head" --format='%(objectname) %(refname)' refs/tags >"$own/tags"
for remote in $(g remote); do g config --remove-section "remote.$remote" || :; done
rm -rf .git/refs .git/packed-refs .git/logs .git/worktrees .git/rr-cache .git/rebase-* .git/sequencer .git/lost-found
rm -rf .git/*_HEAD .git/MERGE_* .git/BISECT* .git/*MSG .git/AUTO_MERGE .git/info/refs .git/info/grafts
mkdir -p .git/refs/heads .git/refs/tags .git/info
printf 'ref: refs/heads/main\n' >.git/HEAD
printf '%s\n' "$head" >.git/refs/heads/main
cp "$own/tags" .git/packed-refs
[ "$start" = "$(g rev-parse "$head^{tree}")" ] || g update-ref refs/start "$start"
cp "$GIT_INDEX_FILE" .git/index
state=clean
if [ "$known" != clean ]; then
  { printf '%s\n' "$head" "$start"; cut -c1-40 "$own/tags"; } >"$own/tips"
  g rev-list --objects --stdin <"$own/tips" >"$own/objects" || refuse "the history of $folder is incomplete"
  cut -c1-40 "$own/objects" >"$own/kept"
  all=$(g cat-file --batch-all-objects --batch-check='%(objectname)' | wc -l)
  if [ "$all" -ne "$(wc -l <"$own/kept")" ] || [ -e .git/objects/info/alternates ]; then
    state=packed
    name=$(g -c pack.packSizeLimit=0 pack-objects -q --delta-base-offset .git/objects/pack/pack <"$own/kept")
    for file in .git/objects/pack/*; do
      case $file in *"$name"*) ;; *) rm -f "$file" ;; esac
    done
    rm -rf .git/objects/?? .git/objects/info
    mkdir .git/objects/info
  fi
fi
printf '%s\n' "$start" "$state"
g ls-files -z --others --exclude-per-directory=.gitignore --directory
rm -rf "$own"
"""
)
"""Puts a repository at a base commit, and removes what came after it.

The arguments are the folder, the base commit, and ``clean`` where the image is known to hold nothing of the future.

A commit on top of the base whose subject is ``SWE-bench`` stays: images of SWE-bench and its relatives keep in it what
their building has changed. So does what is not committed, which is part of the tree that the agent begins with. All
branches and remotes go, all tags that are no part of the history, the reflogs and the stash, and every object that
cannot be reached from what stays. Prints the tree that the agent begins with, ``clean`` or ``packed``, and the paths of
files that git does not know, each with a null character behind it."""

CHANGES = (
    _PRELUDE
    + r"""
folder=$1 start=$2 form=$3
[ ! -L "$folder" ] || refuse "$folder is a link"
cd "$folder"
own=$(mktemp -d)
g init -q "$own"
own=$own/.git
mkdir -p "$own/info" "$own/objects/info"
printf '%s\n' "$folder/.git/objects" >"$own/objects/info/alternates"
cat >"$own/info/exclude"
[ "$form" = text ] || printf '* -diff\n' >"$own/info/attributes"
w() { g --git-dir="$own" --work-tree="$folder" "$@"; }
# The agent's index may be anything; where it can be read, files that it knows are not read again.
cp .git/index "$own/index" 2>/dev/null || :
w read-tree -m "$start" 2>/dev/null || { rm -f "$own"/index*; w read-tree "$start"; }
w add -A >&2
w diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color \
  --src-prefix=a/ --dst-prefix=b/ "$start"
"""
)
"""Prints what differs in a folder from a tree, new files too, whatever has become of the repository's configuration.

The arguments are the folder, the tree, and ``text`` or ``binary``; paths that are left out come on standard input."""

APPLY = (
    _PRELUDE
    + r"""
folder=$1 start=$2 index=$3
cd "$folder"
export GIT_INDEX_FILE="$index"
cat >"$index.patch"
g read-tree "$start"
if [ -s "$index.patch" ]; then
  (ulimit -t 30; g apply --cached --whitespace=nowarn "$index.patch") >&2 || exit 3
fi
tree=$(g write-tree)
printf '%s\0' "$tree"
g diff-tree -r -z --no-renames --full-index "$start" "$tree"
"""
)
"""Prints the tree that a patch on standard input makes of another one, and how both differ; code 3 for no such patch.

The arguments are the folder, the tree, and an index that is written."""

CHECK_OUT = (
    _PRELUDE
    + r"""
folder=$1 tree=$2
cd "$folder"
own=$(mktemp -d)
export GIT_INDEX_FILE="$own/new"
g read-tree "$tree"
g update-index -z --index-info
tree=$(g write-tree)
cp .git/index "$own/work"
GIT_INDEX_FILE="$own/work" g read-tree --reset -u "$tree"
rm -rf "$own"
"""
)
"""Puts a tree with some entries in the place of its own (``update-index --index-info``) into the work tree."""
