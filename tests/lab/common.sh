# Shared by the lab's scripts; sourced, never run.
#
# The cache, .lab/ at the top of the checkout:
#
#   base/SUITE.tar       a debootstrapped Debian, as it came
#   root/SUITE/          that plus the container engines: the root of an environment
#   image/NAME.tar       root file systems of the container images
#   mnt/                 an empty mount point; what is mounted on it is private to each environment
#   lock                 flock: one build at a time
#
# Everything is built beside its final name and renamed, so a killed build leaves nothing half. Each
# thing has a NAME.key beside it: a digest of what it was made from; another digest means build again.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab=${FGPU_LAB:-$(cd "$here/../.." && pwd)/.lab}
started=$SECONDS

say() { printf 'lab: %s (%ds)\n' "$*" "$((SECONDS - started))" >&2; }
die() { printf 'lab: %s\n' "$*" >&2; exit 1; }

# Keeps a second build out until this one ends; a killed holder lets go by itself.
lock() {
    mkdir -p "$lab"
    exec {lock_fd}>"$lab/lock"
    flock -n "$lock_fd" || { say "waiting for another build"; flock "$lock_fd"; }
}

# room MIB: ends where the file system of the cache has less than that free. Half a package manager's run later it would too,
# and say something else.
room() {
    local free
    free=$(df --output=avail --block-size=1M "$lab" | tail -n 1)
    [ "$free" -ge "$1" ] || die "$lab needs $1 MiB and its file system has $free free: make room, or set FGPU_LAB to a folder elsewhere"
}

# digest FILE-OR-WORD…: names what a thing is made from.
digest() {
    local item
    for item; do if [ -f "$item" ]; then cat "$item"; else echo "$item"; fi; done | sha256sum | cut -c1-16
}

# fresh PATH KEY: whether PATH is there and was made from KEY.
fresh() { [ -e "$1" ] && [ "$(cat "$1.key" 2>/dev/null)" = "$2" ]; }

# publish NEW PATH KEY: puts NEW in the place of PATH.
publish() {
    rm -rf "$2.key" "$2.old"
    if [ -e "$2" ]; then mv "$2" "$2.old"; fi
    mv "$1" "$2"
    echo "$3" >"$2.key"
    rm -rf "$2.old"
}

# logged LOG CMD…: runs CMD silently, and shows the end of its output if it fails.
logged() {
    local log=$1
    shift
    mkdir -p "$(dirname "$log")"
    "$@" >"$log" 2>&1 </dev/null || { tail -n 30 "$log" >&2; die "failed: $* (all of it: $log)"; }
}

# fetched LOG CMD…: the same for what needs the mirror, which may not answer once: tried three times.
fetched() {
    local log=$1 try
    shift
    mkdir -p "$(dirname "$log")"
    for try in 1 2; do
        "$@" >"$log" 2>&1 </dev/null && return
        say "once more: $*"
        sleep $((try * 10))
    done
    logged "$log" "$@"
}

# need PROGRAM PACKAGE: installs a Debian package on this machine if the program is missing.
need() {
    command -v "$1" >/dev/null && return
    say "installing $2"
    fetched "$lab/log/apt" apt-get update
    fetched "$lab/log/apt" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$2"
}

# The Debian mirror that this machine itself uses. Asked each time and kept nowhere.
mirror() {
    local found
    found=$(mirrors)
    if [ -z "$found" ]; then
        fetched "$lab/log/apt" apt-get update
        found=$(mirrors)
    fi
    [ -n "$found" ] || die "no Debian mirror among the apt sources of this machine"
    echo "${found%/}"
}

# The first archive of Debian's main that debootstrap can use, or nothing. Debian's cloud images name a file with a list of
# mirrors.
mirrors() {
    apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' "Created-By: Packages" |
        awk '$2 == "Debian" && $3 == "main" { print $1 }' | while read -r uri; do
            case $uri in
                mirror+file:*) uri=${uri#mirror+file:}; awk '$1 ~ /^(https?|file):/ { print $1; exit }' "${uri%/}" ;;
                http:* | https:* | file:*) echo "$uri" ;;
            esac
        done | sed -n 1p
}

# unmounted CMD…: runs CMD in a mount namespace of its own, so that what a chroot left mounted goes away
# with it, also when it is killed.
unmounted() { setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child "$@"; }

# base SUITE: makes .lab/base/SUITE.tar.
base() {
    local suite=$1 tar=$lab/base/$1.tar new=$lab/base/$1.new key script=
    key=$(digest minbase-1 "$suite")
    fresh "$tar" "$key" && return
    need debootstrap debootstrap
    say "debootstrap $suite (half a minute)"
    rm -rf "$new.tar"
    mkdir -p "$lab/base"
    # A suite that is younger than the installed debootstrap is made like sid.
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=sid
    fetched "$lab/log/debootstrap-$suite" unmounted sh -c 'rm -rf "$0" && exec debootstrap "$@"' "$new" --variant=minbase \
        --components=main,contrib,non-free --include=libc6-dev "$suite" "$new" "$(mirror)" $script
    rm -rf "$new"/var/cache/apt/archives/*.deb "$new"/var/log/*
    tar -C "$new" --one-file-system --numeric-owner --xattrs -cf "$new.tar" .
    publish "$new.tar" "$tar" "$key"
    rm -rf "$new"
}

hierarchies="cpuset cpu cpuacct memory devices freezer blkio pids"

# Mounts every cgroup hierarchy that this kernel gives us below DIR: v1 controllers each in a folder of its
# name, systemd's, and v2 in `unified`. A hierarchy that v2 has taken cannot be had as v1; only `devices`
# must be there for Docker, and v2 never takes that one.
mount_hierarchies() {
    local name
    mount -t tmpfs -o mode=755 cgroup "$1"
    for name in $hierarchies; do
        mkdir "$1/$name"
        mount -t cgroup -o "$name" cgroup "$1/$name" 2>/dev/null || rmdir "$1/$name"
    done
    mkdir "$1/systemd" "$1/unified"
    mount -t cgroup -o none,name=systemd cgroup "$1/systemd" 2>/dev/null || rmdir "$1/systemd"
    mount -t cgroup2 cgroup2 "$1/unified"
}

# join_cgroups DIR NAME: makes a cgroup in every hierarchy of `mount_hierarchies DIR`, and puts this shell into it.
join_cgroups() {
    local dir
    for dir in "$1"/*/; do
        mkdir "$dir$2"
        if [ -e "$dir/cpuset.cpus" ]; then
            cat "$dir/cpuset.cpus" >"$dir$2/cpuset.cpus"
            cat "$dir/cpuset.mems" >"$dir$2/cpuset.mems"
        fi
        echo $$ >"$dir$2/cgroup.procs"
    done
}
