#!/bin/bash
# uml-run.sh - run one command as root in a user-mode Linux machine, for what this machine's kernel lacks (ipip).
#
#   tests/tools/uml-run.sh [-m MEMORY] [-t SECONDS] [-b FOLDER]... [-e NAME[=VALUE]]... [-v] -- COMMAND [ARGUMENT...]
#
#   -m  memory of the machine (512M)
#   -t  limit for the whole run in seconds (120); exit status 124 when it is reached
#   -b  a folder of this machine that the guest may write to, at the same path; may be given again
#   -e  a variable for the command; without a value, this shell's
#   -v  show the machine's console on standard error
#
# The guest sees this machine's files below an overlay in its memory: it may write anywhere, and nothing of it comes
# back except below -b folders. /tmp, /var/tmp and /run are empty there. Standard output, standard error and the exit
# status are the command's; 125: the machine did not start or died. Nothing needs root here, nothing is left behind.
#
# The kernel is Debian's user-mode-linux, from PATH or from target/peers (tests/tools/peers.sh). Modules are loaded by
# the kernel itself when asked for (`ip link add ... type ipip`); IPv6 is loaded at the start. It has no nf_tables but for
# bridges: packet rules need qemu-run.sh.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/guest.sh"
take_options "$@"

kernel=$(command -v linux.uml || { [ -x "$peers/linux.uml" ] && echo "$peers/linux.uml"; }) \
  || { echo "uml-run: no user-mode Linux: run make peers" >&2; exit 125; }
modules=${UML_MODULES:-/usr/lib/uml/modules}
[ -d "$modules" ] || modules=$(realpath "$peers/../root/usr/lib/uml/modules")
release=$(ls "$modules" | head -1)
[ -n "$release" ] || { echo "uml-run: no modules below $modules" >&2; exit 125; }
insmod=$(command -v insmod || echo "$peers/insmod")

# First program of the machine: its root is this machine's, read-only. It puts an overlay above and goes there.
cat > "$box/init" <<INIT
#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
$(quote "$insmod" "$modules/$release/kernel/fs/overlayfs/overlay.ko")
mount -t tmpfs -o mode=755 none /mnt && mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work,xino=off none /mnt/root
# Not chroot alone: who enters another mount namespace (\`ip netns exec\`, labs) would stand on the read-only root again.
cd /mnt/root && mkdir -p mnt && pivot_root . mnt
exec chroot . /bin/sh $(quote "$box/guest")
INIT
chmod +x "$box/init"
write_guest "$release" "$modules" 'mount -t hostfs -o "$dir" none "$dir"'

# A processor with AMX has more registers than this kernel knows of: see uml-xstate.c. C compilers are there where Rust is.
preload=
if grep -qw amx_tile /proc/cpuinfo; then
  "${CC:-cc}" -O2 -shared -fPIC -o "$box/xstate.so" "$(dirname "${BASH_SOURCE[0]}")/uml-xstate.c" -ldl >&2 && preload=$box/xstate.so
fi

mkdir "$box/uml"
shm=/dev/shm; [ -w $shm ] || shm=$box
LD_PRELOAD=$preload TMPDIR=$shm setsid "$kernel" rootfstype=hostfs rootflags=/ root=/dev/root ro "mem=$memory" quiet init="$box/init" \
  con=null con0=null,fd:1 "umid=uml$$" "uml_dir=$box/uml/" < /dev/null > "$box/console" 2>&1 &
machine=$!
# The machine's processes are processes of this one, all in its process group.
await $machine $machine
