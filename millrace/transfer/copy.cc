#include "millrace/transfer/copy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "millrace/base/files.h"
#include "millrace/base/random.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/rules.h"
#include "millrace/transfer/multipart_writer.h"
#include "millrace/transfer/ranged_reader.h"
#include "millrace/transfer/window.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;

// Copying inside the store moves no bytes through us: parts are large enough that their number does not matter.
constexpr std::uint64_t kServerPart = 256 * kMiB;
constexpr std::uint64_t kPiece = 4 * kMiB;

struct LocalFile {
  UniqueFd fd;
  struct stat status;
};

Result<LocalFile> OpenRegular(const std::string& path) {
  LocalFile file{MR_TRY(OpenFile(path, O_RDONLY | O_NONBLOCK)), {}};
  if (fstat(file.fd.get(), &file.status) != 0) return Fail(ErrnoError(errno, "reading the state of " + path));
  if (S_ISDIR(file.status.st_mode)) return Fail(Code::kIsDirectory, "{} is a folder", path);
  if (!S_ISREG(file.status.st_mode)) return Fail(Code::kInvalidArgument, "{} is no regular file; use `pipe`", path);
  return file;
}

Status CheckUnchanged(const LocalFile& file, const std::string& path) {
  struct stat now;
  if (fstat(file.fd.get(), &now) != 0) return Fail(ErrnoError(errno, "reading the state of " + path));
  bool same = now.st_size == file.status.st_size && now.st_mtim.tv_sec == file.status.st_mtim.tv_sec &&
              now.st_mtim.tv_nsec == file.status.st_mtim.tv_nsec;
  if (!same) return Fail(Code::kStale, "{} changed while it was read", path);
  return {};
}

/// A hidden sibling that becomes the file, or goes away.
class TemporarySibling {
 public:
  static Result<TemporarySibling> Create(const std::string& path, std::uint64_t size) {
    fs::path target(path);
    std::error_code error;
    if (target.has_parent_path()) fs::create_directories(target.parent_path(), error);
    if (error) return Fail(ErrnoError(error.value(), fmt::format("creating folder {}", target.parent_path().string())));
    if (fs::is_directory(target, error)) return Fail(Code::kIsDirectory, "{} is a folder", path);
    // Within 255 bytes however long the name is.
    std::string temp = (target.parent_path() / fmt::format(".millrace~tmp-{}", SecureHex(8))).string();
    TemporarySibling sibling(MR_TRY(OpenFile(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666)), temp, path);
    // Space that is missing is better noticed now than after half the download.
    struct statvfs disk;
    if (fstatvfs(sibling.fd(), &disk) == 0 && size / disk.f_frsize > disk.f_bavail) {
      return Fail(Code::kNoSpace, "no space for the {} of {}", FormatBytes(size), path);
    }
    return sibling;
  }
  TemporarySibling(TemporarySibling&& other) noexcept
      : fd_(std::move(other.fd_)), temp_(std::exchange(other.temp_, {})), path_(std::move(other.path_)) {}
  TemporarySibling& operator=(TemporarySibling&&) = delete;
  ~TemporarySibling() {
    if (!temp_.empty()) unlink(temp_.c_str());
  }
  int fd() const { return fd_.get(); }

  Status Publish(timespec modified) {
    timespec times[2] = {{0, UTIME_OMIT}, modified};
    if (futimens(fd_.get(), times) != 0) return Fail(ErrnoError(errno, "setting the time of " + path_));
    if (rename(temp_.c_str(), path_.c_str()) != 0) return Fail(ErrnoError(errno, "renaming to " + path_));
    temp_.clear();
    return {};
  }

 private:
  TemporarySibling(UniqueFd fd, std::string temp, std::string path)
      : fd_(std::move(fd)), temp_(std::move(temp)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string temp_, path_;
};

timespec ToTimespec(WallTime time) {
  auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  return {since / 1'000'000'000, since % 1'000'000'000};
}

Status CopyInParts(object::Store& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                   const object::CopyOptions& options, const CopySettings& settings, const object::Call& call) {
  auto head = MR_TRY(object::Head(from, info.key, call));
  if (!head) return Fail(Code::kNotFound, "{} no longer exists", info.key);
  object::Limits limits = to.limits();
  std::uint64_t part_bytes = std::max(kServerPart, (info.size + limits.max_parts - 1) / limits.max_parts);
  part_bytes = std::clamp(part_bytes, limits.min_part, limits.max_part);
  std::string id =
      MR_TRY(object::CreateMultipart(to, key, {.content_type = head->content_type, .metadata = head->metadata}, call));
  std::vector<object::PartInfo> parts((info.size + part_bytes - 1) / part_bytes);
  Window window(settings.parallel_parts, call);
  for (std::size_t i = 0; i < parts.size() && window.Enter(); ++i) {
    object::ByteRange range{i * part_bytes, std::min(part_bytes, info.size - i * part_bytes)};
    to.CopyPart(key, id, static_cast<int>(i) + 1, info.key, range, options, window.call(),
                [&, i](Result<object::PartInfo> part) {
                  if (part) parts[i] = *part;
                  window.Leave(part ? Status() : Status(std::unexpected(part.error())));
                });
  }
  Status copied = window.Finish();
  if (copied) {
    auto completed = object::CompleteMultipart(to, key, id, std::move(parts), {}, call);
    if (!completed) copied = std::unexpected(completed.error());
  }
  if (!copied) (void)object::AbortMultipart(to, key, id);
  return copied;
}

}  // namespace

Status Upload(const std::string& path, object::Store& store, const std::string& key, MemoryBudget& budget,
              const object::PutOptions& put, const CopySettings& settings, object::Call call) {
  LocalFile file = MR_TRY(OpenRegular(path));
  auto size = static_cast<std::uint64_t>(file.status.st_size);
  MultipartWriter writer(store, budget, key,
                         {.part_bytes = settings.part_bytes,
                          .parallel_parts = settings.parallel_parts,
                          .put = put,
                          .expected_bytes = size});
  for (std::uint64_t offset = 0; offset < size;) {
    MutableByteSpan space = MR_TRY(writer.Space(call));
    space = space.first(std::min(space.size(), size - offset));
    MR_TRY(ReadExactly(file.fd.get(), space, offset, path));
    MR_TRY(writer.Commit(space.size()));
    offset += space.size();
    if (settings.on_bytes) settings.on_bytes(space.size());
  }
  MR_TRY(CheckUnchanged(file, path));
  MR_TRY(writer.Finish(call));
  return {};
}

Status Download(object::Store& store, const object::ObjectInfo& info, const std::string& path, MemoryBudget& budget,
                const CopySettings& settings, object::Call call) {
  auto sibling = MR_TRY(TemporarySibling::Create(path, info.size));
  RangedReader reader(
      store, budget, info,
      {.part_bytes = settings.part_bytes, .parallel_parts = settings.parallel_parts, .in_order = false});
  for (;;) {
    ByteSpan piece = MR_TRY(reader.Next(call));
    if (piece.empty()) break;
    MR_TRY(WriteFully(sibling.fd(), piece, reader.offset(), path));
    if (settings.on_bytes) settings.on_bytes(piece.size());
  }
  return sibling.Publish(ToTimespec(info.modified));
}

Status CopyObject(object::Store& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                  const std::string& source_bucket, const CopySettings& settings, object::Call call) {
  object::CopyOptions options{.source_bucket = source_bucket, .source_if_match = info.etag};
  if (info.size > to.limits().max_put) {
    MR_TRY(CopyInParts(from, info, to, key, options, settings, call));
  } else {
    MR_TRY(object::Copy(to, info.key, key, options, call));
  }
  if (settings.on_bytes) settings.on_bytes(info.size);
  return {};
}

Status CopyFile(const std::string& from, const std::string& to, const CopySettings& settings, object::Call call) {
  LocalFile file = MR_TRY(OpenRegular(from));
  auto size = static_cast<std::uint64_t>(file.status.st_size);
  auto sibling = MR_TRY(TemporarySibling::Create(to, size));
  Buffer piece(std::min(size, kPiece));
  for (std::uint64_t offset = 0; offset < size;) {
    MR_TRY(object::CheckCall(call, SystemClock()));
    MutableByteSpan part = piece.span().first(std::min<std::uint64_t>(piece.size(), size - offset));
    MR_TRY(ReadExactly(file.fd.get(), part, offset, from));
    MR_TRY(WriteFully(sibling.fd(), part, offset, to));
    offset += part.size();
    if (settings.on_bytes) settings.on_bytes(part.size());
  }
  MR_TRY(CheckUnchanged(file, from));
  return sibling.Publish(file.status.st_mtim);
}

Result<std::string> LocalPath(const std::string& folder, const std::string& name) {
  for (std::string_view segment : Split(name, '/')) {
    if (segment.empty() || segment == "." || segment == ".." || segment.find('\0') != std::string_view::npos) {
      return Fail(Code::kInvalidArgument,
                  "key \"{}\" is refused: a segment \"{}\" is no file name, or leads out of the destination", name,
                  segment);
    }
  }
  return (fs::path(folder) / name).string();
}

}  // namespace millrace::transfer
