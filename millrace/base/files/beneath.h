// Opens paths that cannot leave a folder, whoever changes the tree meanwhile. Uses openat2(2). Where that call is
// missing (kernels before 5.6, gVisor, old seccomp profiles, qemu-user), the path is walked component by component.
#pragma once

#include <string_view>

#include "millrace/base/files/files.h"

namespace millrace {

/// The way in which OpenBeneath() treats symbolic links and paths that lead out of the folder.
enum class BeneathLinks {
  kRefuse,  ///< no link anywhere; paths that lead out fail (RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS of openat2)
  kInRoot,  ///< links, "/" and ".." resolve as if the folder were "/" (RESOLVE_IN_ROOT of openat2)
};

/// Calls open(2) with O_CLOEXEC for a path relative to the folder `root`. "" is the folder itself. New files get mode
/// 0600. Thread-safe.
/// Returns an invalid descriptor on failure, with errno set: ELOOP for a link that is refused, EXDEV for a path that
/// leads out, else as open(2).
UniqueFd OpenBeneath(int root, std::string_view path, int flags, BeneathLinks links);

/// Does the same without openat2. For systems that lack it, and for tests.
UniqueFd WalkBeneath(int root, std::string_view path, int flags, BeneathLinks links);

}  // namespace millrace
