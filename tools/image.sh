#!/usr/bin/env bash
# Makes bin/image, an OCI layout of the image for amd64 and arm64, from bin/release and the Debian packages in
# tools/image/packages.txt, without Docker and without root. The same commit gives the same bytes.
# ARCH=amd64 makes the image of one architecture only, BIN is another folder than bin. tools/image.sh [--update]: with --update it first writes the current packages to packages.txt.
# DEBIAN_MIRROR is where packages come from, if not from where this machine gets its Debian: mirrors drop old
# versions, Debian's snapshots have them all.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$(realpath "${BIN:-bin}")
release=trixie
packages=(libc6 libgcc-s1 libstdc++6 ca-certificates tzdata)
list=tools/image/packages.txt
IFS=, read -ra arches <<<"${ARCH:-amd64,arm64}"
cache=${GPUMETER_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gpumeter/tools}/debian
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}
commit=$(git rev-parse HEAD)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

for tool in apt-get dpkg-deb; do
	command -v $tool >/dev/null || { echo "image: $tool is missing: the image is made on Debian or Ubuntu" >&2; exit 1; }
done
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --no-release-info --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$(. /etc/os-release && echo "${VERSION_CODENAME:-}") //p" | head -n 1)}
mirror=${mirror%/}
[ -n "$mirror" ] || { echo "image: no source of Debian's packages was found: set DEBIAN_MIRROR" >&2; exit 1; }

update() {
	local arch apt options
	[ "${#arches[@]}" = 2 ] || { echo "image: packages are of all architectures: run it without ARCH" >&2 && return 1; }
	sed -i '/^[0-9a-f]/d' $list
	for arch in "${arches[@]}"; do
		apt=$(mktemp -d)
		mkdir -p "$apt/lists/partial" "$apt/archives/partial"
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >"$apt/sources.list"
		options=(-qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" -o Dir::State::status=/dev/null
			-o "Dir::Cache=$apt" -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o Debug::NoLocking=1 -o APT::Sandbox::User= -o Acquire::Languages=none)
		apt-get "${options[@]}" update
		apt-get "${options[@]}" --print-uris download "${packages[@]}" | sed -n "s|^'[^']*/\(pool/[^']*\)' .* SHA256:\([0-9a-f]*\)$|\2 \1|p" | sed 's/%2b/+/g' >>$list
		rm -r "$apt"
	done
	sort -u -k 2 -o $list.new <(grep '^[0-9a-f]' $list)
	{ grep -v '^[0-9a-f]' $list && cat $list.new; } >$list.whole
	rm $list.new && mv $list.whole $list
}
[ "${1:-}" != --update ] || update

mkdir -p "$cache"
for arch in "${arches[@]}"; do
	root=$bin/debian/$arch
	rm -rf "$root" && mkdir -p "$root/control"
	while read -r sum path; do
		file=$cache/$sum.deb
		case $path in
		*_"$arch".deb | *_all.deb) ;;
		*) continue ;;
		esac
		if [ ! -e "$file" ]; then
			echo "image: getting $path" >&2
			new=$(mktemp -p "$cache")
			/usr/lib/apt/apt-helper -qq -o APT::Sandbox::User= download-file "$mirror/${path//+/%2b}" "$new" "SHA256:$sum" && chmod 644 "$new" && mv "$new" "$file" ||
				{ rm -f "$new" && echo "image: $mirror has no $path: run make image-packages, or set DEBIAN_MIRROR to a snapshot" >&2 && exit 1; }
		fi
		dpkg-deb -x "$file" "$root/files"
		dpkg-deb -f "$file" >"$root/control/$(dpkg-deb -f "$file" Package)"
	done < <(grep '^[0-9a-f]' $list)
done

rm -rf "$bin/image"
(cd tools/image && CGO_ENABLED=0 "${GO:-go}" build -trimpath -buildvcs=false -o "$bin/makeimage" .)
GOMODCACHE=$("${GO:-go}" env GOMODCACHE) GOROOT=$("${GO:-go}" env GOROOT) "$bin/makeimage" -version "$version" -commit "$commit" -arch "$(IFS=, && echo "${arches[*]}")" -bin "$bin"
