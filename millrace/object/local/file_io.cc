#include "millrace/object/local/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/object/local/paths.h"

namespace millrace::object {
namespace {

constexpr std::uint64_t kPiece = 8 * kMiB;  // the bytes between two checks for cancellation: some 100 ms on a slow disk
/// The bytes that a sink gets in one call. They are still in the core's cache then.
constexpr std::uint64_t kPassed = 256 * kKiB;
constexpr char kAttribute[] = "user.millrace";
constexpr std::size_t kMaxAttribute = 64 * kKiB;  // the limit of Linux (xattr(7))

}  // namespace

Result<std::uint64_t> ReadPieces(int fd, MutableByteSpan into, std::uint64_t offset, const KeepGoing& keep_going,
                                 const std::string& what) {
  std::uint64_t done = 0;
  while (done < into.size()) {
    MR_TRY(keep_going());
    ssize_t n = pread(fd, into.data() + done, std::min<std::uint64_t>(into.size() - done, kPiece),
                      static_cast<off_t>(offset + done));
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoError(errno, "reading " + what));
    done += static_cast<std::uint64_t>(n);
  }
  return done;
}

Result<std::uint64_t> PassPieces(int fd, ByteRange range, Sink& sink, const KeepGoing& keep_going,
                                 const std::string& what) {
  Buffer piece(std::min<std::uint64_t>(range.length, kPassed));
  for (std::uint64_t done = 0; done < range.length;) {
    const MutableByteSpan next = piece.span().first(std::min<std::uint64_t>(range.length - done, kPassed));
    const std::uint64_t got = MR_TRY(ReadPieces(fd, next, range.offset + done, keep_going, what));
    if (got > 0) MR_TRY(sink.Take(range.offset + done, next.first(got)));
    done += got;
    if (got < next.size()) return done;
  }
  return range.length;
}

Status WritePieces(int fd, ByteSpan bytes, std::uint64_t offset, const KeepGoing& keep_going, const std::string& what) {
  for (std::uint64_t done = 0; done < bytes.size();) {
    MR_TRY(keep_going());
    ByteSpan piece = bytes.subspan(done, std::min<std::uint64_t>(bytes.size() - done, kPiece));
    MR_TRY(WriteFully(fd, piece, offset + done, what));
    done += piece.size();
  }
  return {};
}

Status CopyPieces(int from, ByteRange range, int to, std::uint64_t offset, const KeepGoing& keep_going,
                  const std::string& what) {
  auto in = static_cast<off_t>(range.offset), out = static_cast<off_t>(offset);
  for (std::uint64_t left = range.length; left > 0;) {
    MR_TRY(keep_going());
    ssize_t n = copy_file_range(from, &in, to, &out, std::min(left, 4 * kPiece), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)) {
      Buffer piece(std::min(left, kPiece));
      std::uint64_t got = MR_TRY(ReadPieces(from, piece.span(), static_cast<std::uint64_t>(in), keep_going, what));
      MR_TRY(WriteFully(to, piece.span().first(got), static_cast<std::uint64_t>(out), what));
      n = static_cast<ssize_t>(got);
      in += n, out += n;
    }
    if (n < 0) return Fail(ErrnoError(errno, "copying " + what));
    if (n == 0) return Fail(Code::kIo, "copying {}: it became shorter meanwhile", what);
    left -= static_cast<std::uint64_t>(n);
  }
  return {};
}

Status SetModified(int fd, WallTime modified, const std::string& what) {
  auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(modified.time_since_epoch()).count();
  timespec times[2] = {{0, UTIME_OMIT}, {since / 1'000'000'000, since % 1'000'000'000}};
  if (futimens(fd, times) != 0) return Fail(ErrnoError(errno, "setting the time of " + what));
  return {};
}

Result<PendingFile> PendingFile::Create(int folder, const std::string& what) {
  std::string temp = fmt::format("{}{}", kTempName, SecureHex(8));
  UniqueFd fd(openat(folder, temp.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) return Fail(ErrnoError(errno, "creating a temporary file for " + what));
  return PendingFile(folder, std::move(fd), std::move(temp));
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : folder_(other.folder_), fd_(std::move(other.fd_)), temp_(std::exchange(other.temp_, {})) {}

PendingFile::~PendingFile() {
  if (!temp_.empty()) unlinkat(folder_, temp_.c_str(), 0);
}

Result<PendingFile> PendingFile::Take(int folder, int from, const std::string& name, const std::string& what) {
  std::string temp = fmt::format("{}{}", kTempName, SecureHex(8));
  UniqueFd fd(openat(from, name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || renameat(from, name.c_str(), folder, temp.c_str()) != 0)
    return Fail(ErrnoError(errno, "creating a temporary file for " + what));
  return PendingFile(folder, std::move(fd), std::move(temp));
}

void PendingFile::PutBack(int from, const std::string& name) {
  if (!temp_.empty() && renameat(folder_, temp_.c_str(), from, name.c_str()) == 0) temp_.clear();
}

Status PendingFile::Seal(WallTime modified, bool durable, const std::string& what) {
  MR_TRY(SetModified(fd_.get(), modified, what));
  if (durable && fsync(fd_.get()) != 0) return Fail(ErrnoError(errno, "syncing " + what));
  return {};
}

Status PendingFile::Publish(const std::string& name, bool replace_empty_folder, const std::string& what) {
  bool renamed = renameat(folder_, temp_.c_str(), folder_, name.c_str()) == 0;
  if (!renamed && errno == EISDIR && replace_empty_folder) {
    unlinkat(folder_, name.c_str(), AT_REMOVEDIR);
    renamed = renameat(folder_, temp_.c_str(), folder_, name.c_str()) == 0;
  }
  if (!renamed && errno == EISDIR) {
    return Fail(Code::kIsDirectory, "{} is a folder here; a file store cannot keep an object under the same name",
                what);
  }
  if (!renamed) return Fail(ErrnoError(errno, "publishing " + what));
  temp_.clear();
  return {};
}

std::string EncodeAttributes(const std::string& content_type, const std::map<std::string, std::string>& metadata) {
  return DumpJson({{"content_type", content_type}, {"metadata", metadata}});
}

Status DecodeAttributes(std::string_view text, const std::string& what, std::string& content_type,
                        std::map<std::string, std::string>& metadata) {
  Json json = MR_TRY(ParseJson(text, what, {.depth = 4}));
  content_type = MR_TRY(JsonString(json, "content_type"));
  const Json* members = JsonFind(json, "metadata");
  if (!members || !members->is_object()) return Fail(Code::kCorrupt, "{}: metadata is no object", what);
  for (const auto& [name, value] : members->items()) {
    if (!value.is_string()) return Fail(Code::kCorrupt, "{}: metadata {} is no string", what, name);
    metadata[name] = value.get<std::string>();
  }
  return {};
}

Status WriteAttributes(int fd, const std::string& content_type, const std::map<std::string, std::string>& metadata,
                       const std::string& what) {
  if (content_type.empty() && metadata.empty()) return {};
  std::string text = EncodeAttributes(content_type, metadata);
  if (fsetxattr(fd, kAttribute, text.data(), text.size(), 0) == 0) return {};
  if (errno != ENOTSUP) return Fail(ErrnoError(errno, "writing the attributes of " + what));
  if (metadata.empty()) return {};  // readers can do without a content type
  return Fail(Code::kUnsupported, "{}: this file system keeps no extended attributes, so it cannot hold metadata",
              what);
}

Status ReadAttributes(int fd, ObjectInfo& into) {
  std::string text(kMaxAttribute, '\0');
  ssize_t size = fgetxattr(fd, kAttribute, text.data(), text.size());
  if (size < 0 && (errno == ENODATA || errno == ENOTSUP)) return {};
  if (size < 0) return Fail(ErrnoError(errno, "reading the attributes of " + into.key));
  return DecodeAttributes(std::string_view(text).substr(0, static_cast<std::size_t>(size)),
                          "the attributes of " + into.key, into.content_type, into.metadata);
}

}  // namespace millrace::object
