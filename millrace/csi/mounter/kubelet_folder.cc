#include "millrace/csi/mounter/kubelet_folder.h"

#include <fcntl.h>

#include <cerrno>
#include <climits>
#include <cstdlib>

#include "millrace/base/files/beneath.h"
#include "millrace/base/files/confine.h"

namespace millrace::csi {
namespace {

std::string WithSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path == "/" ? path : path + "/";
}

Result<UniqueFd> OpenBelow(int folder, const std::string& path, const std::string& target) {
  UniqueFd fd = OpenBeneath(folder, path, O_PATH | O_DIRECTORY, BeneathLinks::kRefuse);
  if (fd) return fd;
  if (errno == ELOOP || errno == EXDEV || errno == ENOTDIR) {
    return Fail(Code::kInvalidArgument, "a link or a file is on the way to {}", target);
  }
  return Fail(ErrnoError(errno, "cannot open the parent of " + target));
}

}  // namespace

Result<KubeletFolder> KubeletFolder::Open(const std::string& path) {
  char resolved[PATH_MAX];
  if (::realpath(path.c_str(), resolved) == nullptr) return Fail(ErrnoError(errno, "kubelet's folder " + path));
  UniqueFd fd = MR_TRY(OpenFile(resolved, O_PATH | O_DIRECTORY));
  return KubeletFolder(WithSlash(path), WithSlash(resolved), std::move(fd));
}

Result<TargetPath> KubeletFolder::Find(const std::string& target) const {
  std::string path = target;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (Status below = CheckConfined(path, named_, "the request of kubelet"); !below) {
    return Fail(Code::kInvalidArgument, "{} is not below kubelet's folder {}", target, named_);
  }
  const std::string relative = path.substr(named_.size());
  if (!relative.starts_with("pods/") && !relative.starts_with("plugins/kubernetes.io/csi/")) {
    return Fail(Code::kInvalidArgument, "{} is not where kubelet has volumes, pods/ or plugins/kubernetes.io/csi/",
                target);
  }
  const std::size_t slash = relative.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : relative.substr(0, slash);
  UniqueFd fd = MR_TRY(OpenBelow(fd_.get(), parent, target));
  return TargetPath{.parent = std::move(fd),
                    .name = slash == std::string::npos ? relative : relative.substr(slash + 1),
                    .path = resolved_ + relative};
}

}  // namespace millrace::csi
