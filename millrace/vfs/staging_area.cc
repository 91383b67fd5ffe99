#include "millrace/vfs/staging_area.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "millrace/base/random.h"
#include "millrace/vfs/staged_record.h"

namespace millrace::vfs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kData = ".data", kRecord = ".record", kSpareRecord = ".record.tmp";
constexpr std::uint64_t kMaxRecordBytes = 256 * kMiB;

Buffer ZeroBuffer(std::size_t size) {
  Buffer zeros(size);
  std::memset(zeros.data(), 0, size);
  return zeros;
}

/// Shares the blocks where the file system can.
Status CopyRange(int from, int to, std::uint64_t begin, std::uint64_t end, const std::string& what) {
  for (auto at = static_cast<off_t>(begin); at < static_cast<off_t>(end);) {
    off_t source = at, target = at;
    const ssize_t copied = ::copy_file_range(from, &source, to, &target, end - static_cast<std::uint64_t>(at), 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return Fail(ErrnoError(errno, "copying to " + what));
    if (copied == 0) return Fail(Code::kIo, "copying to {}: the staged file is shorter than it should be", what);
    at += copied;
  }
  return {};
}

/// A lock of the whole folder for a scope.
class FolderLock {
 public:
  FolderLock(int fd, int how) : fd_(fd) {
    while (::flock(fd_, how) != 0 && errno == EINTR) {
    }
  }
  ~FolderLock() { ::flock(fd_, LOCK_UN); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int fd_;
};

}  // namespace

// --- One file ---

StagedFile::StagedFile(StagingArea& area, fs::path path, UniqueFd fd)
    : area_(area), path_(std::move(path)), fd_(std::move(fd)) {}

StagedFile::~StagedFile() {
  area_.Give(held_.bytes());
  if (kept_) return;
  Unsave();
  area_.Retire(path_, std::move(fd_));
}

fs::path StagedFile::record_path() const { return fs::path(path_).replace_extension(kRecord); }
fs::path StagedFile::spare_record_path() const { return fs::path(path_).replace_extension(kSpareRecord); }

void StagedFile::EmptySpareRecord() const {
  const fs::path spare = spare_record_path();
  if (!OpenFile(spare, O_WRONLY | O_TRUNC)) ::unlink(spare.c_str());
}

Status StagedFile::Charge(std::uint64_t bytes) const {
  if (area_.Take(bytes)) return {};
  return Fail(Code::kNoSpace, "the staging area {} is full ({} bytes)", path_.parent_path().string(),
              area_.options().limit_bytes);
}

Status StagedFile::Write(std::uint64_t offset, ByteSpan bytes) {
  const std::uint64_t end = offset + bytes.size(), fresh = bytes.size() - held_.BytesIn(offset, end);
  MR_TRY(Charge(fresh));
  if (Status written = WriteFully(fd_.get(), bytes, offset, path_.string()); !written) {
    area_.Give(fresh);
    return written;
  }
  held_.Add(offset, end);
  return {};
}

Status StagedFile::Zero(std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t fresh = end - begin - held_.BytesIn(begin, end);
  MR_TRY(Charge(fresh));
  if (Status zeroed = MakeZero(begin, end); !zeroed) {
    area_.Give(fresh);
    return zeroed;
  }
  held_.Add(begin, end);
  return {};
}

Status StagedFile::MakeZero(std::uint64_t begin, std::uint64_t end) const {
  struct stat info{};
  if (::fstat(fd_.get(), &info) != 0) return Fail(ErrnoError(errno, path_.string()));
  if (static_cast<std::uint64_t>(info.st_size) < end && ::ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) {
    return Fail(ErrnoError(errno, path_.string()));
  }
  if (Punch(begin, end)) return {};
  const Buffer zeros = ZeroBuffer(std::min<std::uint64_t>(end - begin, kMiB));
  for (std::uint64_t at = begin; at < end; at += zeros.size()) {
    MR_TRY(
        WriteFully(fd_.get(), zeros.span().first(std::min<std::uint64_t>(zeros.size(), end - at)), at, path_.string()));
  }
  return {};
}

Status StagedFile::Read(std::uint64_t offset, MutableByteSpan into) const {
  return ReadExactly(fd_.get(), into, offset, path_.string());
}

void StagedFile::Drop(std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t before = held_.bytes();
  for (const Interval& held : held_.In(begin, end)) (void)Punch(held.begin, held.end);
  held_.Remove(begin, end);
  area_.Give(before - held_.bytes());
}

/// Gives back the disk's room and makes the range read as zeros; false where the file system cannot.
bool StagedFile::Punch(std::uint64_t begin, std::uint64_t end) const {
  return ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                     static_cast<off_t>(end - begin)) == 0;
}

Result<std::unique_ptr<StagedFile>> StagedFile::Clone() const {
  std::unique_ptr<StagedFile> clone = MR_TRY(area_.Create());
  MR_TRY(clone->Charge(held_.bytes()));
  clone->held_ = held_;
  for (const Interval& held : held_.All()) {
    MR_TRY(CopyRange(fd_.get(), clone->fd_.get(), held.begin, held.end, clone->path_.string()));
  }
  return clone;
}

Status StagedFile::Save(const StagedRecord& record, bool durable) {
  const std::string text = EncodeRecord(record, area_.options().target);
  const auto sync = [durable](int fd, const fs::path& path) -> Status {
    if (!durable || ::fdatasync(fd) == 0) return {};
    return Fail(ErrnoError(errno, "syncing " + path.string()));
  };
  MR_TRY(sync(fd_.get(), path_));
  // New, or empty. Cutting it only now would have ext4 write it to the disk at once.
  const fs::path next = spare_record_path();
  UniqueFd fd = MR_TRY(OpenFile(next, O_WRONLY | O_CREAT, 0600));
  Status written = WriteFully(fd.get(), AsBytes(text), 0, next.string());
  if (written) written = sync(fd.get(), next);
  if (written && ::rename(next.c_str(), record_path().c_str()) != 0) {
    written = Fail(ErrnoError(errno, "replacing " + record_path().string()));
  }
  if (!written) {
    ::unlink(next.c_str());
    return written;
  }
  if (durable) MR_TRY(SyncDirectory(path_.parent_path()));
  saved_ = true;
  return {};
}

void StagedFile::Unsave() {
  if (saved_) {
    // Its file serves for the next record, but its content must not: after a power failure it could be found under that
    // record's name.
    if (::rename(record_path().c_str(), spare_record_path().c_str()) != 0) ::unlink(record_path().c_str());
    EmptySpareRecord();
  }
  saved_ = false;
  kept_ = false;
}

// --- The area ---

Result<std::unique_ptr<StagingArea>> StagingArea::Open(Options options) {
  std::error_code error;
  fs::create_directories(options.directory, error);
  struct stat info{};
  if (error || ::stat(options.directory.c_str(), &info) != 0) {
    return Fail(Code::kIo, "cannot make the staging folder {}: {}; choose another one with --staging-dir",
                options.directory.string(), error ? error.message() : ErrnoError(errno, "stat").ToString());
  }
  if (info.st_uid != ::geteuid() || ::chmod(options.directory.c_str(), 0700) != 0) {
    return Fail(Code::kPermissionDenied,
                "the staging folder {} belongs to user {}; choose another one with --staging-dir",
                options.directory.string(), info.st_uid);
  }
  std::unique_ptr<StagingArea> area(new StagingArea(std::move(options)));
  area->lock_ = MR_TRY(OpenFile(area->options_.directory / "lock", O_RDWR | O_CREAT, 0600));
  return area;
}

Result<std::unique_ptr<StagedFile>> StagingArea::Create() {
  MutexLock lock(mutex_);  // a lock of the folder is the process's, not the thread's
  FolderLock making(lock_.get(), LOCK_SH);
  if (auto spare = TakeSpare()) {
    return std::unique_ptr<StagedFile>(new StagedFile(*this, std::move(spare->first), std::move(spare->second)));
  }
  fs::path path = options_.directory / (SecureHex(8) + std::string(kData));
  UniqueFd fd = MR_TRY(OpenFile(path, O_RDWR | O_CREAT | O_EXCL, 0600));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return Fail(ErrnoError(errno, "locking " + path.string()));
  return std::unique_ptr<StagedFile>(new StagedFile(*this, std::move(path), std::move(fd)));
}

/// An empty file that still is nobody's: other processes adopt what they find in the folder, and may have used it.
std::optional<std::pair<fs::path, UniqueFd>> StagingArea::TakeSpare() {
  while (!spare_.empty()) {
    fs::path path = std::move(spare_.back());
    spare_.pop_back();
    auto fd = OpenFile(path, O_RDWR | O_NOFOLLOW);
    struct stat info{};
    if (!fd || ::flock(fd->get(), LOCK_EX | LOCK_NB) != 0 || ::fstat(fd->get(), &info) != 0) continue;
    const bool used = info.st_size > 0 || ::access(fs::path(path).replace_extension(kRecord).c_str(), F_OK) == 0;
    if (!used) return std::pair(std::move(path), *std::move(fd));
  }
  return std::nullopt;
}

/// Takes back a file without a record, before its lock goes.
void StagingArea::Retire(const fs::path& path, UniqueFd fd) {
  if (::ftruncate(fd.get(), 0) == 0) {
    MutexLock lock(mutex_);
    if (spare_.size() < options_.most_spare) return spare_.push_back(path);
  }
  ::unlink(fs::path(path).replace_extension(kSpareRecord).c_str());
  ::unlink(path.c_str());
}

Result<std::vector<StagingArea::Adopted>> StagingArea::Adopt(const std::string& prefix,
                                                             std::vector<std::string>* unreadable) {
  std::vector<std::pair<fs::path, UniqueFd>> ownerless;
  {
    MutexLock lock(mutex_);
    FolderLock looking(lock_.get(), LOCK_EX);
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(options_.directory, error)) {
      if (entry.path().extension() != kData) continue;
      auto fd = OpenFile(entry.path(), O_RDWR | O_NOFOLLOW);
      if (fd && ::flock(fd->get(), LOCK_EX | LOCK_NB) == 0) ownerless.emplace_back(entry.path(), *std::move(fd));
    }
    if (error) return Fail(Code::kIo, "cannot read the staging folder {}", options_.directory.string());
  }
  std::vector<Adopted> adopted;
  for (auto& [path, fd] : ownerless) {
    std::unique_ptr<StagedFile> file(new StagedFile(*this, path, std::move(fd)));
    file->EmptySpareRecord();  // its owner may have died while it wrote the next one
    auto text = ReadFile(file->record_path(), kMaxRecordBytes);
    if (!text && text.error().code() == Code::kNotFound) continue;  // spare, or never finished: its bytes go
    file->Keep();
    if (!text) {
      unreadable->push_back(text.error().ToString());
      continue;
    }
    auto decoded = DecodeRecord(*text, file->record_path().string());
    if (!decoded) {
      unreadable->push_back(decoded.error().ToString());
      continue;
    }
    if (decoded->target != options_.target || !decoded->record.key.starts_with(prefix)) continue;
    file->saved_ = true;
    file->held_ = decoded->record.held;
    {
      MutexLock lock(mutex_);
      used_ += file->held_.bytes();  // whatever the limit: it is here already
    }
    adopted.push_back({std::move(file), std::move(decoded->record)});
  }
  std::ranges::sort(adopted, {}, [](const Adopted& each) { return each.record.saved; });
  return adopted;
}

StagingArea::Left StagingArea::LookFor(const fs::path& directory, const std::string& target) {
  Left left;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != kRecord) continue;
    auto data = OpenFile(fs::path(entry.path()).replace_extension(kData), O_RDONLY | O_NOFOLLOW);
    if (!data || ::flock(data->get(), LOCK_SH | LOCK_NB) != 0) continue;
    auto text = ReadFile(entry.path(), kMaxRecordBytes);
    auto decoded = text ? DecodeRecord(*text, entry.path().string()) : Fail(text.error());
    if (!decoded || decoded->target != target || !decoded->record.complete) continue;
    ++left.files;
    left.bytes += decoded->record.size;
  }
  return left;
}

WallTime StagingArea::NextStamp() {
  MutexLock lock(mutex_);
  last_stamp_ = std::max(last_stamp_ + WallTime::duration(1), options_.clock->Wall());
  return last_stamp_;
}

bool StagingArea::Take(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > options_.limit_bytes || used_ > options_.limit_bytes - bytes) return false;
  used_ += bytes;
  return true;
}

void StagingArea::Give(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
}

std::uint64_t StagingArea::used() const {
  MutexLock lock(mutex_);
  return used_;
}

}  // namespace millrace::vfs
