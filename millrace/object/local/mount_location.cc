#include "millrace/object/local/mount_location.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

#include "millrace/base/files/files.h"

namespace millrace::object {
namespace {

constexpr long kFuseMagic = 0x65735546;  // FUSE_SUPER_MAGIC of statfs(2)

}  // namespace

const unsigned long kMountLocationRequest = _IOR('M', 4, MountLocation);

std::string LocationText(const std::string& identity, const std::string& key) {
  return identity + (identity.ends_with('/') ? "" : "/") + key;
}

std::optional<std::string> LocationInMount(const std::string& folder) {
  struct statfs system;
  if (::statfs(folder.c_str(), &system) != 0 || system.f_type != kFuseMagic) return std::nullopt;
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  MountLocation answer;
  if (!fd || ::ioctl(fd.get(), kMountLocationRequest, &answer) < 0) return std::nullopt;
  if (answer.magic != MountLocation::kMagic || answer.bytes > sizeof answer.text) return std::nullopt;
  return std::string(answer.text, answer.bytes);
}

}  // namespace millrace::object
