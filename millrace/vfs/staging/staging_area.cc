#include "millrace/vfs/staging/staging_area.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "millrace/base/hash/random.h"
#include "millrace/vfs/staging/staged_record.h"

namespace millrace::vfs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kData = ".data", kRecord = ".record", kSpareRecord = ".record.tmp";
constexpr char kLockFile[] = "lock";
constexpr std::size_t kIdDigits = 16;  ///< 64 random bits: no two files have the same id
/// The largest record that is read. A guess: room for millions of ranges, so only a damaged or foreign file is larger.
constexpr std::uint64_t kMaxRecordBytes = 256 * kMiB;

std::string DataName(std::string_view id) { return fmt::format("{}{}", id, kData); }
std::string RecordName(std::string_view id) { return fmt::format("{}{}", id, kRecord); }
std::string SpareRecordName(std::string_view id) { return fmt::format("{}{}", id, kSpareRecord); }

/// Recognizes the names in a staging folder: the lock file's, and those made of an id.
NameForm StagingNameForm(std::string_view name) {
  if (name == kLockFile) return NameForm::kFile;
  const std::string_view id = name.substr(0, kIdDigits), rest = name.substr(id.size());
  const bool ours = IsHexName(id, kIdDigits) && (rest == kData || rest == kRecord || rest == kSpareRecord);
  return ours ? NameForm::kFile : NameForm::kForeign;
}

constexpr ManagedFolder::Format kStagingKind = {
    .purpose = "staging",
    .version = 1,
    .role = {.what = "the staging folder", .cure = "choose another one with --staging-dir"},
    .legacy_file = kLockFile,
    .name_form = &StagingNameForm};

/// Reads a file that may be another user's. Refuses all but regular files of limited size.
Result<std::string> ReadRegularFile(const fs::path& path) {
  const UniqueFd fd = MR_TRY(OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  struct stat info{};
  const bool readable = ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode);
  if (!readable || static_cast<std::uint64_t>(info.st_size) > kMaxRecordBytes) {
    return Fail(Code::kCorrupt, "{} is no record", path.string());
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  MR_TRY(ReadExactly(fd.get(), AsWritableBytes(text), 0, path.string()));
  return text;
}

Buffer ZeroBuffer(std::size_t size) {
  Buffer zeros(size);
  std::memset(zeros.data(), 0, size);
  return zeros;
}

/// Copies a range between files. Shares the blocks if the file system can.
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

StagedFile::StagedFile(StagingArea& area, std::string id, UniqueFd fd)
    : area_(area), id_(std::move(id)), fd_(std::move(fd)) {}

std::string StagedFile::path() const { return area_.folder_.path() / DataName(id_); }

StagedFile::~StagedFile() {
  area_.ReleaseBytes(held_.bytes());
  if (kept_) return;
  RemoveRecord();
  area_.Retire(id_, std::move(fd_));
}

void StagedFile::EmptySpareRecord() const {
  const std::string spare = SpareRecordName(id_);
  auto emptied = area_.folder_.OpenFile(spare, O_WRONLY | O_TRUNC);
  if (!emptied && emptied.error().code() != Code::kNotFound) (void)area_.folder_.Remove(spare);
}

/// Returns true if the disk has room for `bytes` and, after them, for records. An upload begins with its record,
/// and content without a record is lost with this process.
bool StagedFile::HasRoom(std::uint64_t bytes) const {
  constexpr std::uint64_t kRecords = 256 * kKiB;
  struct statvfs disk{};
  if (::fstatvfs(fd_.get(), &disk) != 0 || disk.f_blocks == 0) return true;  // unknown, or without a limit
  const std::uint64_t blocks = ::geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  return blocks * disk.f_frsize >= bytes + kRecords;
}

Status StagedFile::Charge(std::uint64_t bytes) const {
  if (area_.ReserveBytes(bytes)) return {};
  return Fail(Code::kNoSpace, "the staging area {} is full ({} bytes)", area_.folder_.path().string(),
              area_.options().limit_bytes);
}

Status StagedFile::Write(std::uint64_t offset, ByteSpan bytes) {
  const std::uint64_t end = offset + bytes.size(), fresh = bytes.size() - held_.BytesIn(offset, end);
  if (fresh > 0 && !HasRoom(fresh)) return Fail(ErrnoError(ENOSPC, "cannot write " + path()));
  MR_TRY(Charge(fresh));
  if (Status written = WriteFully(fd_.get(), bytes, offset, path()); !written) {
    area_.ReleaseBytes(fresh);
    return written;
  }
  held_.Add(offset, end);
  return {};
}

Status StagedFile::Zero(std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t fresh = end - begin - held_.BytesIn(begin, end);
  MR_TRY(Charge(fresh));
  if (Status zeroed = MakeZero(begin, end); !zeroed) {
    area_.ReleaseBytes(fresh);
    return zeroed;
  }
  held_.Add(begin, end);
  return {};
}

Status StagedFile::MakeZero(std::uint64_t begin, std::uint64_t end) const {
  struct stat info{};
  if (::fstat(fd_.get(), &info) != 0) return Fail(ErrnoError(errno, path()));
  if (static_cast<std::uint64_t>(info.st_size) < end && ::ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) {
    return Fail(ErrnoError(errno, path()));
  }
  if (Punch(begin, end)) return {};
  const Buffer zeros = ZeroBuffer(std::min<std::uint64_t>(end - begin, kMiB));
  for (std::uint64_t at = begin; at < end; at += zeros.size()) {
    MR_TRY(WriteFully(fd_.get(), zeros.span().first(std::min<std::uint64_t>(zeros.size(), end - at)), at, path()));
  }
  return {};
}

Status StagedFile::Read(std::uint64_t offset, MutableByteSpan into) const {
  return ReadExactly(fd_.get(), into, offset, path());
}

void StagedFile::Drop(std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t before = held_.bytes();
  for (const Interval& held : held_.In(begin, end)) (void)Punch(held.begin, held.end);
  held_.Remove(begin, end);
  area_.ReleaseBytes(before - held_.bytes());
}

/// Frees the range's disk space; it then reads as zeros. Returns false if the file system does not support that.
bool StagedFile::Punch(std::uint64_t begin, std::uint64_t end) const {
  return ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                     static_cast<off_t>(end - begin)) == 0;
}

Result<std::unique_ptr<StagedFile>> StagedFile::Clone() const {
  std::unique_ptr<StagedFile> clone = MR_TRY(area_.Create());
  MR_TRY(clone->Charge(held_.bytes()));
  clone->held_ = held_;
  for (const Interval& held : held_.All()) {
    MR_TRY(CopyRange(fd_.get(), clone->fd_.get(), held.begin, held.end, clone->path()));
  }
  return clone;
}

Status StagedFile::Save(const StagedRecord& record, bool durable) {
  const std::string text = EncodeRecord(record, area_.options().target);
  const ManagedFolder& folder = area_.folder_;
  const auto sync = [durable](int fd, const std::string& what) -> Status {
    if (!durable || ::fdatasync(fd) == 0) return {};
    return Fail(ErrnoError(errno, "syncing " + what));
  };
  MR_TRY(sync(fd_.get(), path()));
  // The spare record is new or empty. If it were truncated here, ext4 would write it to the disk at once.
  const std::string next = SpareRecordName(id_), what = (folder.path() / next).string();
  const UniqueFd fd = MR_TRY(folder.OpenFile(next, O_WRONLY | O_CREAT));
  Status written = WriteFully(fd.get(), AsBytes(text), 0, what);
  if (written) written = sync(fd.get(), what);
  if (written) written = folder.Rename(next, RecordName(id_));
  if (!written) {
    (void)folder.Remove(next);
    return written;
  }
  if (durable) MR_TRY(folder.Sync());
  saved_ = true;
  return {};
}

void StagedFile::RemoveRecord() {
  if (saved_) {
    // The next record uses the file again. Its old content is removed: after a power failure it could appear under the
    // next record's name.
    const std::string record = RecordName(id_);
    if (!area_.folder_.Rename(record, SpareRecordName(id_))) (void)area_.folder_.Remove(record);
    EmptySpareRecord();
  }
  saved_ = false;
  kept_ = false;
}

// --- The area ---

Result<std::unique_ptr<StagingArea>> StagingArea::Open(Options options) {
  ManagedFolder folder = MR_TRY(ManagedFolder::Open(options.directory, kStagingKind));
  std::unique_ptr<StagingArea> area(new StagingArea(std::move(options), std::move(folder)));
  area->lock_ = MR_TRY(area->folder_.OpenFile(kLockFile, O_RDWR | O_CREAT));
  return area;
}

Result<std::unique_ptr<StagedFile>> StagingArea::Create() {
  MutexLock lock(mutex_);  // the folder's lock does not exclude threads of one process
  FolderLock making(lock_.get(), LOCK_SH);
  if (auto spare = TakeSpare()) {
    return std::unique_ptr<StagedFile>(new StagedFile(*this, std::move(spare->first), std::move(spare->second)));
  }
  std::string id = SecureHex(kIdDigits / 2);
  UniqueFd fd = MR_TRY(folder_.OpenFile(DataName(id), O_RDWR | O_CREAT | O_EXCL));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return Fail(ErrnoError(errno, "locking " + DataName(id)));
  return std::unique_ptr<StagedFile>(new StagedFile(*this, std::move(id), std::move(fd)));
}

/// Returns a spare file that is still empty and without an owner: another process may have taken it meanwhile.
std::optional<std::pair<std::string, UniqueFd>> StagingArea::TakeSpare() {
  while (!spare_.empty()) {
    std::string id = std::move(spare_.back());
    spare_.pop_back();
    auto fd = folder_.OpenFile(DataName(id), O_RDWR);
    struct stat info{};
    if (!fd || ::flock(fd->get(), LOCK_EX | LOCK_NB) != 0 || ::fstat(fd->get(), &info) != 0) continue;
    const bool used = info.st_size > 0 || folder_.Has(RecordName(id));
    if (!used) return std::pair(std::move(id), *std::move(fd));
  }
  return std::nullopt;
}

/// Empties a file without a record and makes it a spare, while it is still locked. Removes it if there are enough.
void StagingArea::Retire(const std::string& id, UniqueFd fd) {
  if (::ftruncate(fd.get(), 0) == 0) {
    MutexLock lock(mutex_);
    if (spare_.size() < options_.most_spare) return spare_.push_back(id);
  }
  (void)folder_.Remove(SpareRecordName(id));
  (void)folder_.Remove(DataName(id));
}

Result<std::vector<StagingArea::AdoptedFile>> StagingArea::Adopt(const std::string& prefix,
                                                                 std::vector<std::string>* unreadable) {
  std::vector<std::pair<std::string, UniqueFd>> ownerless;
  {
    MutexLock lock(mutex_);
    FolderLock looking(lock_.get(), LOCK_EX);
    for (const std::string& name : MR_TRY(folder_.Names())) {
      if (!name.ends_with(kData)) continue;
      auto fd = folder_.OpenFile(name, O_RDWR);
      if (fd && ::flock(fd->get(), LOCK_EX | LOCK_NB) == 0) {
        ownerless.emplace_back(name.substr(0, kIdDigits), *std::move(fd));
      }
    }
  }
  std::vector<AdoptedFile> adopted;
  for (auto& [id, fd] : ownerless) {
    const std::string record = RecordName(id);
    std::unique_ptr<StagedFile> file(new StagedFile(*this, id, std::move(fd)));
    file->EmptySpareRecord();  // its owner may have died while it wrote a record
    auto text = folder_.ReadFile(record, kMaxRecordBytes);
    if (!text && text.error().code() == Code::kNotFound)
      continue;  // a spare, or without a record: the destructor removes its bytes
    file->LeaveOnDisk();
    if (!text) {
      unreadable->push_back(text.error().ToString());
      continue;
    }
    auto decoded = DecodeRecord(*text, (folder_.path() / record).string());
    if (!decoded) {
      unreadable->push_back(decoded.error().ToString());
      continue;
    }
    if (decoded->target != options_.target || !decoded->record.key.starts_with(prefix)) continue;
    if (Status confined = CheckKeys(decoded->record, prefix, (folder_.path() / record).string()); !confined) {
      unreadable->push_back(confined.error().ToString());
      continue;
    }
    file->saved_ = true;
    file->held_ = decoded->record.held;
    {
      MutexLock lock(mutex_);
      used_ += file->held_.bytes();  // even beyond the limit: these bytes are on the disk already
    }
    adopted.push_back({std::move(file), std::move(decoded->record)});
  }
  std::ranges::sort(adopted, {}, [](const AdoptedFile& each) { return each.record.saved; });
  return adopted;
}

Result<std::unique_ptr<StagedFile>> StagingArea::Claim(const std::string& id, IntervalSet held) {
  if (!IsHexName(id, kIdDigits)) return Fail(Code::kCorrupt, "\"{}\" is no name of a staged file", id);
  MutexLock lock(mutex_);
  UniqueFd fd = MR_TRY(folder_.OpenFile(DataName(id), O_RDWR));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return Fail(Code::kBusy, "{} has an owner; unmount the mount that uses this staging folder", DataName(id));
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return Fail(ErrnoError(errno, DataName(id)));
  // Another process may have emptied it. What it does not hold would be published as zeros.
  if (!held.empty() && held.All().back().end > static_cast<std::uint64_t>(info.st_size)) {
    return Fail(Code::kCorrupt, "{} is shorter than its mount's log says", DataName(id));
  }
  std::unique_ptr<StagedFile> file(new StagedFile(*this, id, std::move(fd)));
  file->EmptySpareRecord();
  file->saved_ = folder_.Has(RecordName(id));
  file->held_ = std::move(held);
  used_ += file->held_.bytes();  // even beyond the limit: these bytes are on the disk already
  return file;
}

Result<int> StagingArea::HandOver(const fs::path& from, const fs::path& to) {
  const ManagedFolder source = MR_TRY(ManagedFolder::Open(from, kStagingKind));
  const ManagedFolder target = MR_TRY(ManagedFolder::Open(to, kStagingKind));
  const UniqueFd lock = MR_TRY(source.OpenFile(kLockFile, O_RDWR | O_CREAT));
  const FolderLock moving(lock.get(), LOCK_EX);  // else Adopt could open a file here, and miss its record
  int moved = 0;
  for (const std::string& name : MR_TRY(source.Names())) {
    if (!name.ends_with(kRecord)) continue;
    const std::string data = DataName(name.substr(0, kIdDigits));
    const auto fd = source.OpenFile(data, O_RDWR);
    if (!fd || ::flock(fd->get(), LOCK_EX | LOCK_NB) != 0) continue;
    // Bytes without a record are removed by the next process that finds them. So the record is there first.
    if (::linkat(source.fd(), name.c_str(), target.fd(), name.c_str(), 0) != 0 && errno != EEXIST) {
      return Fail(ErrnoError(errno, "moving " + (from / name).string()));
    }
    if (::renameat(source.fd(), data.c_str(), target.fd(), data.c_str()) != 0) {
      return Fail(ErrnoError(errno, "moving " + (from / data).string()));
    }
    (void)source.Remove(name);
    ++moved;
  }
  return moved;
}

StagingArea::Leftovers StagingArea::FindLeftovers(const fs::path& directory, const std::string& target) {
  Leftovers left;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (StagingNameForm(name) == NameForm::kForeign || !name.ends_with(kRecord)) continue;
    auto data = OpenFile(fs::path(entry.path()).replace_extension(kData), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!data || ::flock(data->get(), LOCK_SH | LOCK_NB) != 0) continue;
    auto text = ReadRegularFile(entry.path());
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

bool StagingArea::ReserveBytes(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > options_.limit_bytes || used_ > options_.limit_bytes - bytes) return false;
  used_ += bytes;
  return true;
}

void StagingArea::ReleaseBytes(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
}

std::uint64_t StagingArea::used() const {
  MutexLock lock(mutex_);
  return used_;
}

}  // namespace millrace::vfs
