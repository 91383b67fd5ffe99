#include "millrace/object/local/paths.h"

#include <fcntl.h>

#include <cerrno>
#include <climits>

#include "millrace/base/files/beneath.h"
#include "millrace/base/text.h"

namespace millrace::object {
std::string NameOfSegment(std::string_view segment) {
  bool plain = !segment.empty() && segment != "." && segment != ".." && !segment.starts_with(kReservedName);
  return plain ? std::string(segment) : fmt::format("{}{}", kEscapedName, segment);
}

std::optional<std::string> SegmentOfName(std::string_view name) {
  if (!name.starts_with(kReservedName)) return std::string(name);
  if (!name.starts_with(kEscapedName)) return std::nullopt;
  return std::string(name.substr(kEscapedName.size()));
}

Result<KeyPath> PathOfKey(std::string_view key) {
  if (key.find('\0') != std::string_view::npos) {
    return Fail(Code::kInvalidArgument, "key \"{}\" holds a NUL byte, which no path can; choose another key", key);
  }
  KeyPath path;
  for (std::string_view segment : Split(key, '/')) {
    if (!path.name.empty()) path.folder = path.Full();
    path.name = NameOfSegment(segment);
    if (path.name.size() > NAME_MAX) {
      return Fail(Code::kNameTooLong, "key \"{}…\" has a segment of {} bytes; file names have at most {}",
                  key.substr(0, 64), segment.size(), NAME_MAX);
    }
  }
  return path;
}

Result<RootFolder> RootFolder::Open(const std::filesystem::path& path, bool create) {
  if (create) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return Fail(ErrnoError(error.value(), fmt::format("creating {}", path.string())));
  }
  UniqueFd fd = MR_TRY(OpenFile(path, O_PATH | O_DIRECTORY));
  return RootFolder(std::move(fd), std::filesystem::absolute(path).lexically_normal().string());
}

Result<UniqueFd> RootFolder::TryOpen(const std::string& path, int flags) const {
  UniqueFd fd = OpenBeneath(fd_.get(), path, flags, BeneathLinks::kInRoot);
  if (!fd && errno != ENOENT && errno != ENOTDIR) {
    return Fail(ErrnoError(errno, fmt::format("opening {}", (std::filesystem::path(path_) / path).string())));
  }
  return fd;
}

Result<UniqueFd> RootFolder::MakeFolder(const std::string& path) const {
  UniqueFd there = MR_TRY(TryOpen(path, O_RDONLY | O_DIRECTORY));
  if (there) return there;
  std::size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  UniqueFd above = MR_TRY(MakeFolder(slash == std::string::npos ? "" : path.substr(0, slash)));
  std::string full = (std::filesystem::path(path_) / path).string();
  if (mkdirat(above.get(), name.c_str(), 0777) != 0 && errno != EEXIST) {
    return Fail(ErrnoError(errno, "creating folder " + full));
  }
  there = MR_TRY(TryOpen(path, O_RDONLY | O_DIRECTORY));
  if (!there) return Fail(Code::kNotDirectory, "{} is in the way: it is no folder", full);
  return there;
}

std::string FileETag(const struct stat& status) {
  std::uint64_t modified = static_cast<std::uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000u +
                           static_cast<std::uint64_t>(status.st_mtim.tv_nsec);
  return fmt::format("{:x}-{:x}-{:x}", status.st_ino, modified, status.st_size);
}

}  // namespace millrace::object
