#!/usr/bin/env bash
# Puts what runs real pods into a folder of the user's cache; `--folder` tells which: kubelet,
# kube-scheduler and kube-controller-manager, built from Debian's source, once for each version of this
# file; and containerd, runc, CNI plugins and a shell for images from Debian's packages.
# Needs no root, installs and starts nothing, and leaves the machine's settings of apt as they are.
set -euo pipefail

VERSION=1.20.2
SOURCE=kubernetes_1.20.5+really$VERSION.orig.tar.gz
SHA256=b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc
COMPILER=(golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev)
PROGRAMS=(containerd runc libseccomp2 containernetworking-plugins busybox-static)

read -r recipe _ < <(sha256sum "${BASH_SOURCE[0]}")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rota-tests
folder=$cache/kubelet-${recipe:0:16}
if [[ ${1:-} == --folder ]]; then
  echo "$folder"
  exit
fi
[[ ! -d $folder ]] || exit 0

mkdir -p "$cache"
exec 9>"$cache/kubelet.lock"
flock 9
[[ ! -d $folder ]] || exit 0 # somebody else has built it meanwhile
build=$(mktemp -d)
trap 'rm -rf "$build" "$folder.new"' EXIT

fail() {
  echo "tests/engines/kubelet.sh: $*" >&2
  exit 1
}

# The machine's own entries, with sources, and with lists of their own.
mkdir -p "$build"/apt/{sources,lists/partial,cache/archives/partial} "$build"/{debs,tools,built,go/src/k8s.io}
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
  [[ ! -e $file ]] || sed -E \
    's/^Types:.*/Types: deb deb-src/; s/^deb(-src)?([[:space:]].*)$/deb\2\ndeb-src\2/' \
    "$file" >"$build/apt/sources/${file##*/}"
done
apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$build/apt/sources"
  -o "Dir::State::lists=$build/apt/lists" -o "Dir::Cache=$build/apt/cache" -o APT::Sandbox::User=root)
cd "$build/debs"
"${apt[@]}" update || echo "tests/engines/kubelet.sh: some lists of packages are missing" >&2
"${apt[@]}" source --download-only kubernetes || true
[[ -e $SOURCE ]] || fail "$SOURCE is not to be had: this machine's entries of apt lead to no Debian 12," \
  "whose source package kubernetes has it"
sha256sum --check --quiet <<<"$SHA256  $SOURCE" || fail "$SOURCE is not the file this was written for"
"${apt[@]}" download "${COMPILER[@]}" "${PROGRAMS[@]}" ||
  fail "${COMPILER[*]} ${PROGRAMS[*]}: apt can't download them"

for package in *.deb; do
  dpkg-deb -x "$package" "$build/tools"
done
cd "$build/go/src/k8s.io"
tar -xzf "$build/debs/$SOURCE" --transform "s#^kubernetes-$VERSION#kubernetes#" \
  kubernetes-$VERSION/{cmd,pkg,plugin,staging,third_party,vendor}
rm -rf "$build"/{apt,debs}
cd kubernetes
# The reflect2 it brings crashes, with this Go, on the first custom resource; Debian's does not.
rm vendor/github.com/modern-go/reflect2/*.{go,s}
cp "$build"/tools/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} \
  vendor/github.com/modern-go/reflect2/
rm -f vendor/github.com/modern-go/reflect2/*_test.go

# Debugging information, inlining and most of the compiler's garbage collection would be a third of
# the work.
export GOROOT=$build/tools/usr/lib/go-1.19 GOPATH=$build/go GOCACHE=$build/objects HOME=$build
export GO111MODULE=off GOPROXY=off GOFLAGS= CGO_ENABLED=0 GOGC=400
go=$GOROOT/bin/go
quick=(-gcflags="k8s.io/kubernetes/...=-dwarf=false -l"
  -gcflags="k8s.io/kubernetes/vendor/...=-dwarf=false -l")
version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
nice "$go" build -p 2 -tags providerless "${quick[@]}" -o "$build/built/" \
  -ldflags "-s -w -X $version.gitVersion=v$VERSION -X $version.gitMajor=1 -X $version.gitMinor=20" \
  ./cmd/kubelet ./cmd/kube-scheduler ./cmd/kube-controller-manager

rm -rf "$folder.new"
mkdir "$folder.new"
cd "$build/tools"
cp "$build"/built/* usr/bin/{containerd,containerd-shim-runc-v2,ctr} usr/sbin/runc bin/busybox \
  usr/lib/cni/{bridge,host-local,loopback} usr/lib/*/libseccomp.so.2 "$folder.new/"
mv -T "$folder.new" "$folder"
