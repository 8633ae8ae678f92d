# make demo     a quarter of a GPU with docker, in a lab of its own
# make test     lints, unit tests, packages, and real Docker, containerd, Podman, runc, crun and Kubernetes in the lab
#   Both need Debian 12 or newer, root and Rust, and install what else they lack (packaging/prepare), as do all of these.
# make          build everything
# make install  DESTDIR= PREFIX=/usr
# make packages .deb and .rpm in target/packages
# make dra-packages   .deb and .rpm of fgpu-dra, the plugin for Kubernetes, in target/packages/dra
# make image    the container image of fgpu-dra, an OCI archive in target/image
# make docs     the generated pages of docs/
# make lint, make unit, make packages package-tests, make lab LAB=FILTER, make cluster-core: the parts of make test
# make upgrade-test OLD=COMMIT   upgrades from that commit's package with containers running, and back (root)
# make cluster  pods and claims in a real Kubernetes (root; needs Go; builds Kubernetes once, in seven minutes)
# make cluster-vm      its core over cgroup v2 and systemd, on a virtual machine
# make cluster-skew OLD=COMMIT   that commit's package beside this one's chart, and the other way round
# make cluster-bench   its measurements
# make deny     licences, sources and advisories of the dependencies (DENY='licenses bans sources' without the network)
# make frameworks   PyTorch and the tools that show GPUs, over the simulated driver (root; downloads 3.1 GB)
# make bench    measurements for BENCHMARKS.md (root)
# make pictures the pictures of docs/metrics.md, from a Prometheus in the lab (root)
# make replay   TRACE=FOLDER: a public trace through our placement, against the published rate (tests/replay/README.md)
# make gpu-kit  what tests/gpu/run needs on a machine with a GPU, in .lab/gpu-kit

PREFIX  ?= /usr
DESTDIR ?=
CARGO   ?= cargo
# What packaging/tools installs goes before what this machine may have of it: the versions matter. ~/.cargo/bin comes last: a
# shell of root's may not know it.
FGPU_TOOLS ?= $(CURDIR)/.lab/tools
export FGPU_TOOLS
export PATH := $(FGPU_TOOLS)/bin:$(PATH):$(HOME)/.cargo/bin
export CARGO_ZIGBUILD_ZIG_PATH ?= $(FGPU_TOOLS)/ziglang/zig
# An hour of tests is worth more than one lost connection.
export CARGO_NET_RETRY ?= 10
# A clone of somebody else's, of which root makes packages: git would refuse it.
ifndef GIT_CONFIG_COUNT
export GIT_CONFIG_COUNT := 1
export GIT_CONFIG_KEY_0 := safe.directory
export GIT_CONFIG_VALUE_0 := $(CURDIR)
endif
RUSTC   := PATH="$(PATH)" rustc
# A target named in full makes cargo apply RUSTFLAGS to what it ships and not to build scripts and macros.
HOST    := $(shell $(RUSTC) -vV 2>/dev/null | sed -n 's/^host: //p')
# The front ends are in the way of every container: static, so that the loader has nothing to do, no library of
# the host is needed and no variable of the caller's is heard. With musl where rustc has it (`rustup target add`), else
# with this machine's libc.a: glibc asks the processor for its features first, 0.4 ms where a hypervisor answers.
MUSL    := $(subst -gnu,-musl,$(HOST))
STATIC_TARGET := $(if $(wildcard $(shell $(RUSTC) --print target-libdir --target $(MUSL) 2>/dev/null)),$(MUSL),$(HOST))
STATIC  := target/$(STATIC_TARGET)/release
STATIC_PROGRAMS := fgpu-runtime fgpu-hook containerd-shim-fgpu-v2
# The oldest C library that `fgpu` is to run on, 2.28 (RHEL 8, below Debian 11) for packages: it loads NVML, so it cannot be
# static. Needs cargo-zigbuild; empty: this machine's.
GLIBC   ?=
# What is shipped is what is tested and measured.
packages reproduce package-tests upgrade-test lab cluster cluster-core cluster-tests frameworks bench test: export GLIBC = 2.28
# In a folder of its own: cargo does not tell the static programs' dependencies from these and would build each anew in turns.
DYNAMIC := target/dynamic$(GLIBC)
BUILD_FGPU := $(if $(GLIBC),zigbuild --target $(HOST).$(GLIBC),build --target $(HOST)) --target-dir $(DYNAMIC)
# No path of the building machine is in a program.
REMAP   := --remap-path-prefix=$(CURDIR)=/usr/src/fgpu --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/usr/src/cargo
GENERATED := target/generated

PREPARE := @packaging/prepare
PART     = @printf '\n== make test: %s\n' "$(1)"; $(MAKE) --no-print-directory

.PHONY: prepared all host quota generated simulated install packages package-tests reproduce upgrade-test docs lab-tree lint deny unit lab dra dra-packages image cluster cluster-core cluster-tests cluster-vm cluster-skew cluster-bench test frameworks demo pictures bench replay gpu-kit clean

all: host quota

prepared:
	$(PREPARE) build

host quota generated simulated: | prepared

host:
	RUSTFLAGS="-C target-feature=+crt-static $(REMAP)" $(CARGO) build --release --locked --target $(STATIC_TARGET) -p fgpu-hook -p fgpu-runtime -p fgpu-shim
	RUSTFLAGS="$(REMAP)" $(CARGO) $(BUILD_FGPU) --release --locked -p fgpu -p fgpu-spank

quota:
	cd quota && RUSTFLAGS="$(REMAP)" $(CARGO) build --release --locked -p fgpu-quota-cuda -p fgpu-quota-nvml

# Man pages and completions.
generated:
	rm -rf $(GENERATED)
	$(CARGO) run --quiet --locked -p fgpu-packaging -- $(GENERATED)
	find $(GENERATED)/share/man -type f -exec gzip -9n {} +

# With what came after driver 550 too: a node's description says which version its driver has.
simulated:
	cd tests/driver && $(CARGO) build --release --locked --features sim-cuda/newer

install: all generated
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/fgpu
	install -m 0755 $(addprefix $(STATIC)/,$(STATIC_PROGRAMS)) $(DYNAMIC)/$(HOST)/release/fgpu $(DESTDIR)$(PREFIX)/bin
	install -m 0644 quota/target/release/libfgpu_cuda.so $(DESTDIR)$(PREFIX)/lib/fgpu/libfgpu-cuda.so
	install -m 0644 quota/target/release/libfgpu_nvml.so $(DESTDIR)$(PREFIX)/lib/fgpu/libfgpu-nvml.so
	install -D -m 0644 $(DYNAMIC)/$(HOST)/release/libfgpu_spank.so $(DESTDIR)$(PREFIX)/lib/fgpu/slurm/fgpu.so
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system packaging/systemd/*
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/lib/tmpfiles.d packaging/tmpfiles.d/*
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/fgpu/prometheus packaging/prometheus/*
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/fgpu/grafana packaging/grafana/*
	cp -R $(GENERATED)/share $(DESTDIR)$(PREFIX)
ifeq ($(PREFIX),/usr)
	# These name /usr/bin/fgpu-hook, and the engines read this directory only. Elsewhere: `fgpu setup podman|crio`.
	install -D -m 0644 -t $(DESTDIR)/usr/share/containers/oci/hooks.d packaging/hooks.d/*.json
	install -D -m 0644 -t $(DESTDIR)/usr/share/fgpu/hooks.d/precreate packaging/hooks.d/precreate/*.json
endif

# The plugin for Kubernetes runs on any node: static, with Zig's C compiler for what is C in it.
DRA   := target/dra/$(MUSL)/release/fgpu-dra
IMAGE := deploy/kubernetes/image/build

dra:
	$(PREPARE) packages
	RUSTFLAGS="-C target-feature=+crt-static $(REMAP)" $(CARGO) zigbuild --release --locked --target $(MUSL) --target-dir target/dra -p fgpu-dra

# .deb and .rpm of the plugin, in target/packages/dra.
dra-packages: dra
	packaging/kubernetes/build $(DRA)

# The container image, an OCI archive in target/image.
image: export GLIBC = 2.28
image: dra
	rm -rf target/image
	$(MAKE) install DESTDIR=target/image/root PREFIX=/usr
	install -m 0755 $(DRA) target/image/root/usr/bin
	$(IMAGE) target/image/root $(DRA) target/image/fgpu-dra.tar

PACKAGES := target/packages

packages:
	$(PREPARE) packages
	rm -rf $(PACKAGES)
	$(MAKE) install DESTDIR=$(PACKAGES)/root PREFIX=/usr
	# Debian and Fedora ship programs without symbols; cargo's are kept for the backtraces of everybody else.
	strip --strip-all -R .comment -R .note $(addprefix $(PACKAGES)/root/usr/bin/,$(STATIC_PROGRAMS) fgpu)
	strip --strip-unneeded -R .comment -R .note $(PACKAGES)/root/usr/lib/fgpu/*.so $(PACKAGES)/root/usr/lib/fgpu/slurm/*.so
	packaging/build

package-tests:
	$(PREPARE) package-tests
	$(CARGO) test --locked -p fgpu-lab --test packages

# Builds the tree once more, in another folder, and compares the packages.
reproduce: packages
	$(PREPARE) reproduce
	packaging/reproduce

# The lab's upgrade, and the way back, with the package of another commit, OLD (root; see packaging/previous).
upgrade-test:
	$(PREPARE) upgrade-test
	$(MAKE) packages
	$(MAKE) lab-tree
	packaging/previous $(OLD)
	$(CARGO) test --locked -p fgpu-lab --test lab -- packages::upgrade; status=$$?; rm -rf $(PACKAGES)/previous; exit $$status

docs:
	$(CARGO) run --quiet --locked -p fgpu-packaging -- --docs docs

lint:
	$(PREPARE) lint
	$(CARGO) fmt --all --check
	cd quota && $(CARGO) fmt --all --check
	cd tests/driver && $(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	cd quota && $(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	cd tests/driver && $(CARGO) clippy --locked --workspace --all-targets -- -D warnings

# Needs cargo-deny (`cargo install --locked cargo-deny`). Advisories need its database, which is fetched.
deny:
	for workspace in . quota tests/driver; do \
		(cd $$workspace && $(CARGO) deny --config "$(CURDIR)/deny.toml" check --hide-inclusion-graph $(DENY)) || exit 1; \
	done

unit:
	$(PREPARE) unit
	$(MAKE) quota
	$(CARGO) test --locked --workspace --exclude fgpu-lab --exclude fgpu-cluster
	cd quota && $(CARGO) test --locked --workspace
	cd tests/driver && $(CARGO) test --locked --workspace
	tests/gpu/run --self-test

# What the lab's environments run: an installed tree, and the simulated driver's.
lab-tree: simulated
	$(MAKE) install DESTDIR=.lab/install PREFIX=/usr
	install -d .lab/sim/nodes
	install -m 0755 $(addprefix tests/driver/target/release/,fgpu-sim libsim_cuda.so libsim_nvml.so) .lab/sim
	install -m 0644 tests/driver/nodes/*.toml .lab/sim/nodes
	tests/driver/fetch-nvidia-smi .lab/nvidia
	install -m 0755 .lab/nvidia/nvidia-smi .lab/sim

lab:
	$(PREPARE) lab
	$(MAKE) lab-tree
	tests/lab/nvidia-ctk
	install -m 0755 .lab/nvidia-ctk .lab/sim
	tests/lab/devcontainer
	rm -rf .lab/sim/devcontainer && cp -al .lab/devcontainer .lab/sim
	ls $(PACKAGES)/*.deb >/dev/null 2>&1 || $(MAKE) packages
	$(CARGO) test --locked -p fgpu-lab --test lab -- $(LAB)

# Claims, with containerd and CRI-O. Kubernetes is built of Go modules: a machine that cannot get them is told so.
cluster-core:
	if tests/cluster/build --can; then FGPU_CLUSTER_CORE=1 $(MAKE) --no-print-directory cluster-tests LAB=dra::; \
		else echo "make test: no Kubernetes here, see above"; fi

cluster-tests:
	$(PREPARE) cluster
	$(MAKE) lab-tree
	$(CARGO) build --locked -p fgpu-dra
	$(CARGO) test --locked -p fgpu-cluster --test cluster -- $(LAB)

# The images are those of the chart, one with an upgrade's other bytes.
cluster: dra
	$(MAKE) lab-tree
	$(IMAGE) .lab/install $(DRA) .lab/cluster/image/fgpu-dra.tar lab
	$(IMAGE) .lab/install $(DRA) .lab/cluster/image/fgpu-dra-next.tar next LICENSE
	packaging/kubernetes/build $(DRA)
	cp target/packages/dra/*.deb .lab/cluster/image
	install -m 0755 $(DRA) .lab/cluster/image
	$(MAKE) cluster-tests
	[ -n "$(LAB)" ] || $(MAKE) cluster-vm

# The core under a kubelet with systemd and cgroup v2, on a virtual machine that QEMU interprets: ten minutes.
cluster-vm:
	$(MAKE) cluster-tests LAB=forky-vm::annotations::a_pod_sees
	$(MAKE) cluster-tests LAB=forky-vm::dra::

# Two versions on one node; OLD has a Makefile with `image`.
cluster-skew:
	packaging/previous --image $(OLD)
	$(MAKE) cluster LAB=skew::

# Measurements for BENCHMARKS.md.
cluster-bench:
	$(MAKE) cluster LAB=forky-containerd::bench::

frameworks:
	$(PREPARE) frameworks
	$(MAKE) lab-tree
	$(CARGO) test --locked -p fgpu-lab --test frameworks -- $(LAB)

# What is built here is built once.
test: export CARGO_INCREMENTAL = 0
test:
	$(PREPARE) test
	$(call PART,1 of 6: formats and lints) lint
	$(call PART,2 of 6: unit tests) unit
	$(call PART,3 of 6: packages) packages
	$(call PART,4 of 6: what is in the packages) package-tests
	$(call PART,5 of 6: real engines in the lab) lab
	$(call PART,6 of 6: a real Kubernetes) cluster-core

demo:
	$(PREPARE) demo
	$(MAKE) lab-tree
	tests/lab/demo

# docs/images/metrics*.svg, from a real Prometheus.
pictures:
	$(PREPARE) demo
	$(MAKE) lab-tree
	tests/lab/pictures

bench:
	$(PREPARE) bench
	$(MAKE) lab-tree
	tests/lab/bench

# 93.08% is what best fit allocates in the mean of the authors' ten runs on this trace.
replay:
	$(CARGO) run --locked --release -p fgpu-replay -- trace --at-least 93.08 \
		--nodes $(TRACE)/openb_node_list_gpu_node.csv --pods $(TRACE)/openb_pod_list_default.csv
	$(CARGO) run --locked --release -p fgpu-replay -- mig --at-least 88

gpu-kit:
	$(MAKE) install DESTDIR=.lab/gpu-kit PREFIX=/usr
	tests/gpu/assemble .lab/gpu-kit

clean:
	$(CARGO) clean
	cd quota && $(CARGO) clean
	cd tests/driver && $(CARGO) clean
