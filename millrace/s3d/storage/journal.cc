#include "millrace/s3d/storage/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/crc.h"

namespace millrace::s3d {
namespace {

constexpr std::string_view kMagic = "millrace-s3d 1\n";
constexpr std::size_t kFrameBytes = 8;  // length and CRC-32C, 4 bytes each
constexpr char kJournalFile[] = "journal";

/// Reads the records of a file in pieces.
class Scanner {
 public:
  Scanner(int fd, std::uint64_t size) : fd_(fd), size_(size) {}

  Result<bool> TakeMagic() {
    if (!MR_TRY(Have(kMagic.size())) || std::string_view(window_).substr(0, kMagic.size()) != kMagic) return false;
    at_ += kMagic.size();
    return true;
  }

  /// Returns the next record, or nothing at the end of the valid part. Only a torn last append may follow it: an
  /// incomplete record, a record with missing bytes, or zeros.
  Result<std::optional<std::string_view>> Next() {
    if (!MR_TRY(Have(kFrameBytes))) return std::nullopt;
    std::uint64_t length = LoadLittle<std::uint32_t>(here());
    if (length == 0) {
      if (MR_TRY(OnlyZeros())) return std::nullopt;
      return Damaged();
    }
    if (length > size_ - valid() - kFrameBytes) return std::nullopt;
    if (length > Journal::kMaxRecordBytes) return Damaged();
    MR_TRY(Have(kFrameBytes + length));
    auto crc = LoadLittle<std::uint32_t>(here() + 4);
    std::string_view record = std::string_view(window_).substr(at_ + kFrameBytes, length);
    if (Crc32c(AsBytes(record)) != crc) {
      if (valid() + kFrameBytes + length == size_) return std::nullopt;
      return Damaged();
    }
    at_ += kFrameBytes + length;
    return record;
  }

  /// Returns the end of the valid part.
  std::uint64_t valid() const { return base_ + at_; }

 private:
  const std::byte* here() const { return AsBytes(window_).data() + at_; }

  std::unexpected<Error> Damaged() const {
    return Fail(Code::kCorrupt, "damaged at byte {}: restore the folder from a copy, or start with an empty --root",
                valid());
  }

  /// Makes the next `bytes` bytes available at here(). Returns false if the file ends before.
  Result<bool> Have(std::size_t bytes) {
    if (window_.size() - at_ >= bytes) return true;
    if (size_ - valid() < bytes) return false;
    window_.erase(0, at_);
    base_ += at_;
    at_ = 0;
    std::size_t old = window_.size();
    window_.resize(std::min<std::uint64_t>(std::max<std::uint64_t>(bytes, 4 * kMiB), size_ - base_));
    MR_TRY(ReadExactly(fd_, AsWritableBytes(std::span(window_).subspan(old)), base_ + old, "the journal"));
    return true;
  }

  Result<bool> OnlyZeros() {
    while (size_ > valid()) {
      std::size_t piece = std::min<std::uint64_t>(size_ - valid(), 4 * kMiB);
      MR_TRY(Have(piece));
      if (window_.find_first_not_of('\0', at_) < at_ + piece) return false;
      window_.erase(0, at_ + piece);
      base_ += at_ + piece;
      at_ = 0;
    }
    return true;
  }

  const int fd_;
  const std::uint64_t size_;
  std::string window_;
  std::uint64_t base_ = 0;  ///< file offset of window_[0]
  std::size_t at_ = 0;
};

}  // namespace

Status FrameRecord(std::string_view record, std::string& frames) {
  if (record.size() > Journal::kMaxRecordBytes) {
    return Fail(Code::kInvalidArgument,
                "what describes the object takes {} bytes, of at most {}: it has too many pieces; upload it anew",
                record.size(), Journal::kMaxRecordBytes);
  }
  std::byte frame[kFrameBytes];
  StoreLittle(frame, static_cast<std::uint32_t>(record.size()));
  StoreLittle(frame + 4, Crc32c(AsBytes(record)));
  frames.append(AsText(frame)).append(record);
  return {};
}

Journal::Journal(const ManagedFolder& root, bool sync, UniqueFd fd, std::uint64_t bytes)
    : root_(root),
      path_(root.path() / kJournalFile),
      sync_(sync),
      fd_(std::make_shared<UniqueFd>(std::move(fd))),
      file_bytes_(bytes),
      group_([this] { return Flush(); }) {}

Result<std::unique_ptr<Journal>> Journal::Open(const ManagedFolder& root, bool sync, const Visitor& visit) {
  const std::string path = root.path() / kJournalFile;
  if (!root.Has(kJournalFile)) MR_TRY(root.WriteFileAtomic(kJournalFile, AsBytes(kMagic)));
  UniqueFd fd = MR_TRY(root.OpenFile(kJournalFile, O_RDWR));
  struct stat status;
  // Earlier releases made the file readable for everybody.
  if (fstat(fd.get(), &status) != 0 || fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) return Fail(ErrnoError(errno, path));

  Scanner scanner(fd.get(), status.st_size);
  if (!MR_TRY(scanner.TakeMagic())) {
    return Fail(Code::kCorrupt, "{} is not a journal of millrace s3d: give an empty --root", path);
  }
  std::uint64_t valid = scanner.valid();
  for (;;) {
    auto record = scanner.Next();
    if (!record) return Fail(record.error().Context(path));
    if (!*record) break;
    if (Status seen = visit(**record); !seen) return Fail(seen.error().Context(path));
    valid = scanner.valid();
  }
  if (ftruncate(fd.get(), static_cast<off_t>(valid)) != 0 || fdatasync(fd.get()) != 0) {
    return Fail(ErrnoError(errno, path));
  }
  return std::unique_ptr<Journal>(new Journal(root, sync, std::move(fd), valid));
}

Status Journal::Append(std::string_view frames) {
  if (broken_) return Fail(Code::kIo, "{} could not be written before: nothing more is stored", path_);
  int fd = [this] {
    MutexLock lock(fd_mutex_);
    return fd_->get();
  }();
  if (Status written = WriteFully(fd, AsBytes(frames), file_bytes_, path_); !written) {
    // Every reader would stop at a half-written record in the middle. Remove it, or append nothing more.
    broken_ = ftruncate(fd, static_cast<off_t>(file_bytes_)) != 0;
    return Fail(written.error());
  }
  file_bytes_ += frames.size();
  return {};
}

Status Journal::Sync() { return sync_ ? group_.Sync() : Status(); }

Status Journal::Flush() {
  std::shared_ptr<UniqueFd> fd;
  {
    MutexLock lock(fd_mutex_);
    fd = fd_;
  }
  if (fdatasync(fd->get()) != 0) return Fail(ErrnoError(errno, path_));
  return {};
}

Status Journal::Replace(std::string_view frames) {
  std::string content(kMagic);
  content += frames;
  MR_TRY(root_.WriteFileAtomic(kJournalFile, AsBytes(content)));
  UniqueFd fd = MR_TRY(root_.OpenFile(kJournalFile, O_RDWR));
  // The whole new file is durable, so the threads that still wait for the old one may go on, too.
  MutexLock lock(fd_mutex_);
  fd_ = std::make_shared<UniqueFd>(std::move(fd));
  file_bytes_ = content.size();
  return {};
}

}  // namespace millrace::s3d
