#include "millrace/transfer/local/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "millrace/base/files/special_file.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/text.h"
#include "millrace/object/local/paths.h"
#include "millrace/transfer/local/resume.h"

namespace millrace::transfer {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHashPiece = 256 * kKiB;  // stays in the processor's cache between reading and checking
constexpr std::uint64_t kMaxJournal = 64 * kMiB;  // two million blocks

struct Hidden {
  UniqueFd fd;
  std::string path;
  bool shared_name = false;  ///< a later process looks for the file under this name
  bool left_over = false;    ///< an earlier process has written to it
};

/// Opens and locks the sibling that every process uses for `path`. If another process has locked it, makes one under a
/// random name.
Result<Hidden> OpenHidden(const fs::path& path) {
  // A digest of the name, since a name may have only 255 bytes.
  Sha256Digest digest = Sha256(AsBytes(path.filename().string()));
  std::string name =
      (path.parent_path() / (std::string(object::kTempName) + HexEncode(ByteSpan(digest).first(8)))).string();
  UniqueFd fd = MR_TRY(OpenFile(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666));
  struct stat ours, named;
  // In a folder that others may write to, such as /tmp, the file may belong to another user, who could change it later.
  bool mine = flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && fstat(fd.get(), &ours) == 0 && S_ISREG(ours.st_mode) &&
              ours.st_uid == geteuid() && ours.st_nlink == 1 && stat(name.c_str(), &named) == 0 &&
              ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
  if (mine) return Hidden{std::move(fd), std::move(name), true, ours.st_size > 0};
  name = (path.parent_path() / (std::string(object::kTempName) + SecureHex(8))).string();
  return Hidden{MR_TRY(OpenFile(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666)), name, false, false};
}

std::string Heading(const PartialFile::Plan& plan) {
  Sha256Digest digest = Sha256(AsBytes(plan.source));
  return fmt::format("millrace-download 2 {} {} {} {}", plan.size, plan.part_bytes, plan.block_bytes,
                     HexEncode(digest));
}

}  // namespace

Result<PartialFile> PartialFile::Open(const std::string& path, Plan plan) {
  fs::path target(path);
  std::error_code error;
  if (target.has_parent_path()) fs::create_directories(target.parent_path(), error);
  if (error) return Fail(ErrnoError(error.value(), fmt::format("creating folder {}", target.parent_path().string())));
  if (fs::is_directory(target, error)) return Fail(Code::kIsDirectory, "{} is a folder", path);
  const auto replaced = MR_TRY(FindReplaced(AT_FDCWD, path, path));
  if (plan.block_bytes == 0 || plan.block_bytes > plan.part_bytes) plan.block_bytes = plan.part_bytes;
  Hidden hidden = MR_TRY(OpenHidden(target));
  PartialFile file(std::move(hidden.fd), std::move(hidden.path), path, std::move(plan));
  // A later process must be able to open the hidden file and go on.
  if (replaced) MR_TRY(KeepAccess(file.fd(), *replaced, S_IRUSR | S_IWUSR, file.temporary_));
  file.blocks_.resize(std::max<std::uint64_t>(1, file.Blocks()));
  if (file.plan_.part_bytes > 0 && hidden.shared_name) {
    MR_TRY(file.OpenJournal());
  } else if (hidden.left_over) {
    unlink(file.JournalPath().c_str());
  }
  std::uint64_t have = file.bytes_done();
  if (hidden.left_over && ftruncate(file.fd(), static_cast<off_t>(have == 0 ? 0 : file.plan_.size)) != 0) {
    return Fail(ErrnoError(errno, "setting the size of " + file.temporary_));
  }
  // Fail now rather than after half the download.
  struct statvfs disk;
  std::uint64_t missing = file.plan_.size - have;
  if (missing > kHashPiece && fstatvfs(file.fd(), &disk) == 0 && missing / disk.f_frsize > disk.f_bavail) {
    file.KeepFiles();
    return Fail(Code::kNoSpace, "no space for the {} of {}", FormatBytes(missing), path);
  }
  return file;
}

PartialFile::~PartialFile() {
  if (temporary_.empty()) return;
  unlink(JournalPath().c_str());
  unlink(temporary_.c_str());
}

std::uint64_t PartialFile::BlocksOfPart() const {
  return (plan_.part_bytes + plan_.block_bytes - 1) / plan_.block_bytes;
}

std::uint64_t PartialFile::Blocks() const {
  if (plan_.part_bytes == 0 || plan_.size == 0) return 1;
  return BlockAt(plan_.size - 1) + 1;
}

std::uint64_t PartialFile::BlockAt(std::uint64_t offset) const {
  if (plan_.part_bytes == 0) return 0;
  return offset / plan_.part_bytes * BlocksOfPart() + offset % plan_.part_bytes / plan_.block_bytes;
}

object::ByteRange PartialFile::RangeOf(std::uint64_t block) const {
  if (plan_.part_bytes == 0) return {0, plan_.size};
  const std::uint64_t part = block / BlocksOfPart(),
                      begin = part * plan_.part_bytes + block % BlocksOfPart() * plan_.block_bytes,
                      end = std::min({begin + plan_.block_bytes, (part + 1) * plan_.part_bytes, plan_.size});
  return {begin, end > begin ? end - begin : 0};
}

std::vector<object::ByteRange> PartialFile::Missing(std::uint64_t part) const {
  std::vector<object::ByteRange> missing;
  const std::uint64_t first = part * BlocksOfPart(),
                      end = std::min<std::uint64_t>(first + BlocksOfPart(), blocks_.size());
  for (std::uint64_t block = first; block < end; ++block) {
    if (blocks_[block].done) continue;
    const object::ByteRange range = RangeOf(block);
    if (!missing.empty() && missing.back().offset + missing.back().length == range.offset) {
      missing.back().length += range.length;
    } else {
      missing.push_back(range);
    }
  }
  return missing;
}

/// Verifies the blocks in an earlier journal, and begins a new journal with the verified ones.
Status PartialFile::OpenJournal() {
  if (auto journal = ReadFile(JournalPath(), kMaxJournal)) Believe(*journal);
  std::string text = JournalLine(Heading(plan_));
  for (std::uint64_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].done) text += JournalLine(fmt::format("{} {:08x}", i, blocks_[i].crc32c));
  }
  std::string fresh = JournalPath() + ".new";
  UniqueFd fd = MR_TRY(OpenFile(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW, 0666));
  Status written = WriteFully(fd.get(), AsBytes(text), 0, fresh);
  if (written && rename(fresh.c_str(), JournalPath().c_str()) != 0) {
    written = Fail(ErrnoError(errno, "renaming to " + JournalPath()));
  }
  if (!written) unlink(fresh.c_str());
  journal_ = std::move(fd);
  return written;
}

void PartialFile::Believe(const std::string& journal) {
  bool first = true;
  Buffer piece(kHashPiece);
  for (std::string_view line : Split(journal, '\n')) {
    auto text = TextOfLine(line);
    if (!text) return;
    if (std::exchange(first, false)) {
      if (*text != Heading(plan_)) return;
      continue;
    }
    std::uint64_t block = 0;
    std::uint32_t expected = 0, actual = 0;
    std::size_t middle = text->find(' ');
    if (middle == text->npos) return;
    const std::string_view whole = *text, number = whole.substr(0, middle), sum = whole.substr(middle + 1);
    std::from_chars(number.data(), number.data() + number.size(), block);
    std::from_chars(sum.data(), sum.data() + sum.size(), expected, 16);
    if (block >= blocks_.size()) return;
    const object::ByteRange range = RangeOf(block);
    std::uint64_t at = range.offset, end = at + range.length;
    Status read;
    while (read && at < end) {
      MutableByteSpan into = piece.span().first(std::min<std::uint64_t>(piece.size(), end - at));
      read = ReadExactly(fd_.get(), into, at, temporary_);
      if (read) actual = Crc32c(into, actual);
      at += into.size();
    }
    if (read && actual == expected) blocks_[block] = {true, actual};
  }
}

std::uint32_t PartialFile::crc32c() const {
  std::uint32_t crc = 0;
  for (std::uint64_t i = 0; i < blocks_.size(); ++i) crc = Crc32cCombine(crc, blocks_[i].crc32c, RangeOf(i).length);
  return crc;
}

std::uint64_t PartialFile::bytes_done() const {
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < blocks_.size(); ++i) bytes += blocks_[i].done ? RangeOf(i).length : 0;
  return bytes;
}

Status PartialFile::MarkDone(std::uint64_t block, std::uint32_t crc32c) {
  BlockState& state = blocks_[block];
  if (state.done && state.crc32c == crc32c) return {};
  state = {true, crc32c};
  if (!journal_) return {};
  std::string line = JournalLine(fmt::format("{} {:08x}", block, crc32c));
  // One write(2) with O_APPEND per line, so that lines of several threads do not mix.
  if (write(journal_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return Fail(ErrnoError(errno, "writing " + JournalPath()));
  }
  return {};
}

Status PartialFile::Publish(timespec modified) {
  const auto replaced = MR_TRY(FindReplaced(AT_FDCWD, path_, path_));
  if (replaced) MR_TRY(KeepAccess(fd_.get(), *replaced, 0, path_));
  timespec times[2] = {{0, UTIME_OMIT}, modified};
  if (futimens(fd_.get(), times) != 0) return Fail(ErrnoError(errno, "setting the time of " + path_));
  if (journal_) unlink(JournalPath().c_str());
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Fail(ErrnoError(errno, "renaming to " + path_));
  temporary_.clear();
  return {};
}

void PartialFile::KeepFiles() {
  if (journal_ && bytes_done() > 0) temporary_.clear();
}

}  // namespace millrace::transfer
