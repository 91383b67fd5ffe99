#include "millrace/base/files/managed_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "millrace/base/environment.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxMarkerBytes = 4 * kKiB;  // a marker has some 80 bytes
constexpr std::string_view kMarkerFormat = "millrace-folder";
constexpr mode_t kFileMode = 0600, kFolderMode = 0700;  // for the owner alone
/// mkfs makes this folder in the top folder of a file system.
constexpr std::string_view kLostAndFound = "lost+found";

/// Returns the names in a folder, without "." and "..".
Result<std::vector<std::string>> EntriesOf(int folder, const fs::path& path) {
  // Opens the folder again: the read position belongs to the open file description, which `folder` shares.
  UniqueFd fd(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::unique_ptr<DIR, decltype([](DIR* dir) { ::closedir(dir); })> entries(fd ? ::fdopendir(fd.get()) : nullptr);
  if (!entries) return Fail(ErrnoError(errno, fmt::format("cannot list {}", path.string())));
  (void)fd.Release();
  std::vector<std::string> names;
  errno = 0;
  for (const dirent* entry = ::readdir(entries.get()); entry != nullptr; entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return Fail(ErrnoError(errno, fmt::format("cannot list {}", path.string())));
  return names;
}

/// Returns whether a folder does not count as content of the managed folder it is in: mkfs made it, or it is a managed
/// folder itself.
bool IsApart(int folder, const std::string& name, const struct stat& info) {
  if (!S_ISDIR(info.st_mode)) return false;
  if (name == kLostAndFound && info.st_uid == 0) return true;
  const std::string marker = fmt::format("{}/{}", name, ManagedFolder::kMarkerName);
  struct stat found{};
  return info.st_uid == ::geteuid() && ::fstatat(folder, marker.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISREG(found.st_mode) && found.st_uid == ::geteuid();
}

bool IsOneComponent(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

/// Returns the value of a variable, or "" if it is not set.
std::string Folder(const char* variable) { return EnvironmentVariable(variable).value_or(""); }

}  // namespace

Result<ManagedFolder> ManagedFolder::Open(const fs::path& path, const Format& format) {
  const fs::path absolute = fs::absolute(path);
  ManagedFolder folder(absolute, format, MR_TRY(OpenTrustedFolder(absolute, format.role, MissingFolder::kMake)));
  if (MR_TRY(folder.HasMarker())) return folder;
  // The lock lets one process at a time check whether the folder is empty. On a file system without locks, two
  // processes that open a new folder together may refuse each other's files. The user then starts the second one again.
  ::flock(folder.fd(), LOCK_EX);
  Status marked;
  auto found = folder.HasMarker();
  if (!found) marked = Fail(found.error());
  if (found && !*found) {
    marked = folder.CheckContent();
    if (marked) marked = folder.WriteMarker();
  }
  ::flock(folder.fd(), LOCK_UN);
  MR_TRY(std::move(marked));
  return folder;
}

Result<ManagedFolder> ManagedFolder::Below(const std::string& name, const Format& format) const {
  if (!IsOneComponent(name)) return Fail(Code::kInternal, "\"{}\" names no folder in {}", name, path_.string());
  const fs::path path = path_ / name;
  if (::mkdirat(fd(), name.c_str(), kFolderMode) != 0 && errno != EEXIST) {
    return Fail(ErrnoError(errno, fmt::format("making {}", path.string())));
  }
  UniqueFd below(::openat(fd(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!below || ::fstat(below.get(), &info) != 0) {
    return Fail(ErrnoError(errno, fmt::format("opening {}", path.string())));
  }
  if (info.st_uid != ::geteuid() || OthersMayWrite(below.get(), info)) {
    return Refuse(fmt::format("\"{}\" in it belongs to another user, or others may write to it", name));
  }
  return ManagedFolder(path, format, std::move(below));
}

Result<UniqueFd> ManagedFolder::OpenFile(const std::string& name, int flags) const {
  if (!IsOneComponent(name)) return Fail(Code::kInternal, "\"{}\" names no file in {}", name, path_.string());
  int opened = -1;
  // Without O_TRUNC: the file is truncated below, after the check that it belongs to the effective user.
  const int how = (flags & ~O_TRUNC) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  do opened = ::openat(fd(), name.c_str(), how, kFileMode);
  while (opened < 0 && errno == EINTR);
  if (opened < 0) return Fail(ErrnoError(errno, fmt::format("cannot open {}", (path_ / name).string())));
  UniqueFd file(opened);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) {
    return Refuse(fmt::format("\"{}\" in it is not a file of user {}", name, ::geteuid()));
  }
  if ((flags & O_TRUNC) != 0 && info.st_size > 0 && ::ftruncate(file.get(), 0) != 0) {
    return Fail(ErrnoError(errno, fmt::format("cannot empty {}", (path_ / name).string())));
  }
  return file;
}

Result<std::string> ManagedFolder::ReadFile(const std::string& name, std::uint64_t max_bytes) const {
  const UniqueFd file = MR_TRY(OpenFile(name, O_RDONLY));
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return Fail(ErrnoError(errno, (path_ / name).string()));
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > max_bytes) {
    return Fail(Code::kResourceExhausted, "{} is larger than {} bytes", (path_ / name).string(), max_bytes);
  }
  std::string content(size, '\0');
  MR_TRY(ReadExactly(file.get(), AsWritableBytes(content), 0, (path_ / name).string()));
  return content;
}

Status ManagedFolder::WriteFileAtomic(const std::string& name, ByteSpan content) const {
  const std::string fresh = fmt::format("{}.{:016x}.tmp", name, SystemEntropy());
  const auto write = [&]() -> Status {
    const UniqueFd file = MR_TRY(OpenFile(fresh, O_WRONLY | O_CREAT | O_EXCL));
    MR_TRY(WriteFully(file.get(), content, 0, (path_ / fresh).string()));
    if (::fsync(file.get()) != 0) {
      return Fail(ErrnoError(errno, fmt::format("cannot sync {}", (path_ / fresh).string())));
    }
    MR_TRY(Rename(fresh, name));
    return Sync();
  };
  Status written = write();
  if (!written) (void)Remove(fresh);
  return written;
}

bool ManagedFolder::Has(const std::string& name) const {
  struct stat info{};
  return ::fstatat(fd(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

Status ManagedFolder::Remove(const std::string& name) const {
  if (!IsOneComponent(name)) return Fail(Code::kInternal, "\"{}\" names no file in {}", name, path_.string());
  if (::unlinkat(fd(), name.c_str(), 0) == 0) return {};
  return Fail(ErrnoError(errno, fmt::format("removing {}", (path_ / name).string())));
}

Status ManagedFolder::Rename(const std::string& from, const std::string& to) const {
  if (!IsOneComponent(from) || !IsOneComponent(to)) {
    return Fail(Code::kInternal, "\"{}\" and \"{}\" name no files in {}", from, to, path_.string());
  }
  if (::renameat(fd(), from.c_str(), fd(), to.c_str()) == 0) return {};
  return Fail(ErrnoError(errno, fmt::format("replacing {}", (path_ / to).string())));
}

Result<std::vector<std::string>> ManagedFolder::Names() const {
  std::vector<std::string> names = MR_TRY(EntriesOf(fd(), path_));
  std::erase_if(names, [&](const std::string& name) { return format_->name_form(name) == NameForm::kForeign; });
  return names;
}

Status ManagedFolder::Sync() const {
  if (::fsync(fd()) == 0) return {};
  return Fail(ErrnoError(errno, fmt::format("cannot sync {}", path_.string())));
}

// --- The marker ---

std::unexpected<Error> ManagedFolder::Refuse(const std::string& why) const {
  return Fail(Code::kPermissionDenied, "{} {} is not used: {}; {}", format_->role.what, path_.string(), why,
              format_->role.cure);
}

/// Returns false also for a marker that its writer did not finish. The folder is then checked as one without a marker.
Result<bool> ManagedFolder::HasMarker() const {
  auto text = ReadFile(kMarkerName, kMaxMarkerBytes);
  if (!text && text.error().code() == Code::kNotFound) return false;
  if (!text) return Fail(text.error());
  if (!text->ends_with('\n')) return false;
  const std::string name = (path_ / kMarkerName).string();
  const Json marker = MR_TRY(ParseJson(*text, name));
  if (MR_TRY(JsonString(marker, "format")) != kMarkerFormat) return Fail(Code::kCorrupt, "{} is damaged", name);
  const std::string holds = MR_TRY(JsonString(marker, "holds"));
  const std::uint64_t version = MR_TRY(JsonUint(marker, "version")), uid = MR_TRY(JsonUint(marker, "uid"));
  if (holds != format_->purpose) {
    return Fail(Code::kInvalidArgument, "{} {} is not used: it serves Millrace as \"{}\", not as \"{}\"; {}",
                format_->role.what, path_.string(), holds, format_->purpose, format_->role.cure);
  }
  if (version > format_->version) {
    return Fail(Code::kUnsupported, "{} {} is not used: a later release of Millrace made it; {}", format_->role.what,
                path_.string(), format_->role.cure);
  }
  if (uid != ::geteuid()) return Refuse(fmt::format("user {} made it, not user {}, who runs this", uid, ::geteuid()));
  return true;
}

Status ManagedFolder::CheckContent() const {
  bool signed_by_us = false;
  std::vector<std::string> content;
  for (std::string& name : MR_TRY(EntriesOf(fd(), path_))) {
    struct stat info{};
    if (name == kMarkerName) continue;
    if (::fstatat(fd(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && IsApart(fd(), name, info)) continue;
    signed_by_us = signed_by_us || (!format_->legacy_file.empty() && name == format_->legacy_file);
    content.push_back(std::move(name));
  }
  for (const std::string& name : content) MR_TRY(CheckEntry(name));
  if (content.empty() || signed_by_us || format_->legacy_file.empty()) return {};
  return Fail(Code::kInvalidArgument,
              "{} {} is not used: it is not empty, and nothing in it says that Millrace made it; {}",
              format_->role.what, path_.string(), format_->role.cure);
}

/// Succeeds if an earlier release may have made the entry and no other user can have changed it.
Status ManagedFolder::CheckEntry(const std::string& name) const {
  const NameForm form = format_->name_form(name);
  if (form == NameForm::kForeign) {
    return Fail(Code::kInvalidArgument,
                "{} {} is not used: \"{}\" in it was not made by Millrace; give an empty folder: {}",
                format_->role.what, path_.string(), name, format_->role.cure);
  }
  UniqueFd entry(::openat(fd(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!entry || ::fstat(entry.get(), &info) != 0) {
    return Fail(ErrnoError(errno, fmt::format("opening {}", (path_ / name).string())));
  }
  const bool right_type =
      form == NameForm::kFolder ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode) && info.st_nlink == 1;
  if (right_type && info.st_uid == ::geteuid() && !OthersMayWrite(entry.get(), info)) return {};
  return Refuse(fmt::format("\"{}\" in it may have been put there by another user", name));
}

Status ManagedFolder::WriteMarker() const {
  const Json marker = {
      {"format", kMarkerFormat}, {"version", format_->version}, {"holds", format_->purpose}, {"uid", ::geteuid()}};
  const std::string text = DumpJson(marker) + "\n";
  const UniqueFd file = MR_TRY(OpenFile(kMarkerName, O_WRONLY | O_CREAT | O_TRUNC));
  return WriteFully(file.get(), AsBytes(text), 0, (path_ / kMarkerName).string());
}

Result<fs::path> DefaultCacheFolder(std::string_view flag) {
  if (const std::string cache = Folder("XDG_CACHE_HOME"); cache.starts_with('/')) return fs::path(cache) / "millrace";
  if (const std::string home = Folder("HOME"); home.starts_with('/')) return fs::path(home) / ".cache" / "millrace";
  if (::geteuid() == 0 && Folder("HOME").empty()) return fs::path("/var/cache/millrace");
  return Fail(Code::kInvalidArgument,
              "{} has no default: neither XDG_CACHE_HOME nor HOME is an absolute path; name a folder with {}", flag,
              flag);
}

bool IsHexName(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace millrace
