#include "millrace/vfs/staging/session_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "millrace/base/files/mapped_file.h"
#include "millrace/base/hash/crc.h"
#include "millrace/vfs/staging/session_records.h"

namespace millrace::vfs {
namespace {

constexpr std::uint64_t kFrameBytes = 8;  ///< before a record: its length and its CRC-32C
constexpr std::uint64_t kMaxRecord = 512 * kMiB;
/// A log is replaced when it is so long, and this many times as long as what its state needs. 16 MiB are read in some
/// 50 ms; requests wait meanwhile.
constexpr std::uint64_t kLeastToReplace = 16 * kMiB, kTimesToReplace = 4;

void AddFramed(std::string& to, std::string_view record) {
  std::array<std::byte, kFrameBytes> frame{};
  StoreLittle(frame.data(), static_cast<std::uint32_t>(record.size()));
  StoreLittle(frame.data() + 4, Crc32c(AsBytes(record)));
  to += AsText(frame);
  to += record;
}

/// Writes the shortest log of a state. Returns its length.
Result<std::uint64_t> WriteState(const SessionState& state, int fd, const std::string& what) {
  constexpr std::size_t kPiece = 1 * kMiB;
  std::string piece;
  std::uint64_t written = 0;
  const auto flush = [&]() -> Status {
    MR_TRY(WriteFully(fd, AsBytes(piece), written, what));
    written += piece.size();
    piece.clear();
    return {};
  };
  const auto add = [&](std::string_view record) -> Status {
    AddFramed(piece, record);
    return piece.size() < kPiece ? Status() : flush();
  };
  MR_TRY(add(HeaderRecord(state.header)));
  for (const auto& [id, inode] : state.inodes) MR_TRY(add(InodeRecord(id, inode)));
  // An inode that was there and is gone: it carries the generation.
  const InodeId last = static_cast<InodeId>(state.last_generation) << 32;
  MR_TRY(add(InodeRecord(last, {})));
  MR_TRY(add(InodeGoneRecord(last)));
  for (const auto& [number, file] : state.files) MR_TRY(add(FileRecord(number, file)));
  for (const auto& [number, directory] : state.directories) {
    MR_TRY(add(DirectoryRecord(number, directory)));
    for (std::size_t page = 0; page < directory.begins.size(); ++page) {
      MR_TRY(add(PageRecord(number, page, directory.begins[page])));
    }
  }
  for (const auto& [number, content] : state.contents) MR_TRY(add(ContentRecord(number, content)));
  MR_TRY(flush());
  return written;
}

std::uint64_t ReplaceAt(std::uint64_t size) { return std::max(kLeastToReplace, kTimesToReplace * size); }

}  // namespace

SessionLog::SessionLog(std::filesystem::path path, UniqueFd fd, std::uint64_t size, std::uint64_t next_content,
                       Logger log)
    : path_(std::move(path)),
      log_(std::move(log)),
      fd_(std::move(fd)),
      size_(size),
      replace_at_(ReplaceAt(size)),
      next_content_(next_content) {}

Result<std::unique_ptr<SessionLog>> SessionLog::Create(const std::filesystem::path& path, std::string_view header,
                                                       Logger log) {
  ::unlink(path.c_str());
  UniqueFd fd = MR_TRY(OpenFile(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  std::string begin;
  AddFramed(begin, HeaderRecord(header));
  MR_TRY(WriteFully(fd.get(), AsBytes(begin), 0, path.string()));
  return std::unique_ptr<SessionLog>(new SessionLog(path, std::move(fd), begin.size(), 1, std::move(log)));
}

Result<SessionState> SessionLog::Read(ByteSpan bytes, std::string_view what) {
  SessionState state;
  while (bytes.size() >= kFrameBytes) {
    const auto length = LoadLittle<std::uint32_t>(bytes.data());
    const auto crc = LoadLittle<std::uint32_t>(bytes.data() + 4);
    if (length > kMaxRecord) return Fail(Code::kCorrupt, "{} is damaged", what);
    if (length > bytes.size() - kFrameBytes) break;  // its process was killed while it wrote this record
    const ByteSpan record = bytes.subspan(kFrameBytes, length);
    bytes = bytes.subspan(kFrameBytes + length);
    if (Crc32c(record) != crc) {
      if (bytes.empty()) break;
      return Fail(Code::kCorrupt, "{} is damaged: a checksum does not hold", what);
    }
    if (Status applied = ApplyRecord(record, state); !applied) {
      return Fail(applied.error().Context(std::string(what)).WithCode(Code::kCorrupt));
    }
  }
  return state;
}

Result<SessionLog::Resumed> SessionLog::Resume(const std::filesystem::path& path, Logger log) {
  UniqueFd fd = MR_TRY(OpenFile(path, O_RDWR | O_NOFOLLOW));
  const MappedFile log_of_other = MR_TRY(MappedFile::Open(fd.get(), path.string()));
  const ByteSpan bytes = log_of_other.bytes();
  SessionState state = MR_TRY(Read(bytes, path.string()));
  if (state.header.empty()) return Fail(Code::kCorrupt, "{} is no log of a mount", path.string());
  const std::uint64_t next = state.contents.empty() ? 1 : state.contents.rbegin()->first + 1;
  Resumed resumed{
      .log = std::unique_ptr<SessionLog>(new SessionLog(path, std::move(fd), bytes.size(), next, std::move(log))),
      .state = std::move(state)};
  {
    SessionLog& opened = *resumed.log;
    MutexLock lock(opened.mutex_);
    MR_TRY(opened.Replace());  // cuts an incomplete last record off
  }
  return resumed;
}

std::uint64_t SessionLog::NextContent() {
  MutexLock lock(mutex_);
  return next_content_++;
}

void SessionLog::Remove() {
  MutexLock lock(mutex_);
  if (fd_) ::unlink(path_.c_str());
  fd_.Reset();
}

void SessionLog::Append(std::string_view record) {
  std::string framed;
  framed.reserve(kFrameBytes + record.size());
  AddFramed(framed, record);
  MutexLock lock(mutex_);
  if (!fd_) return;
  if (Status written = WriteFully(fd_.get(), AsBytes(framed), size_, path_.string()); !written) {
    return Abandon(written.error());
  }
  size_ += framed.size();
  if (size_ < replace_at_) return;
  if (Status replaced = Replace(); !replaced) Abandon(replaced.error());
}

Status SessionLog::Replace() {
  const MappedFile log = MR_TRY(MappedFile::Open(fd_.get(), path_.string()));
  const SessionState state = MR_TRY(Read(log.bytes(), path_.string()));
  const std::filesystem::path next = path_.string() + ".new";
  ::unlink(next.c_str());
  UniqueFd fd = MR_TRY(OpenFile(next, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  const std::uint64_t size = MR_TRY(WriteState(state, fd.get(), next.string()));
  if (::rename(next.c_str(), path_.c_str()) != 0) return Fail(ErrnoError(errno, "replacing " + path_.string()));
  fd_ = std::move(fd);
  size_ = size;
  replace_at_ = ReplaceAt(size_);
  return {};
}

void SessionLog::Abandon(const Error& reason) {
  log_.Error("the log of this mount cannot be written; if its process is killed, open files break",
             {{"reason", reason}});
  ::unlink(path_.c_str());
  fd_.Reset();
}

void SessionLog::PutHeader(std::string_view header) { Append(HeaderRecord(header)); }
void SessionLog::PutInode(InodeId id, const SavedInode& inode) { Append(InodeRecord(id, inode)); }
void SessionLog::PutLookups(InodeId id, std::uint32_t lookups) { Append(LookupsRecord(id, lookups)); }
void SessionLog::RemoveInode(InodeId id) { Append(InodeGoneRecord(id)); }
void SessionLog::PutFile(std::uint64_t number, const SavedFile& file) { Append(FileRecord(number, file)); }
void SessionLog::RemoveFile(std::uint64_t number) { Append(FileGoneRecord(number)); }
void SessionLog::MoveVersion(InodeId inode, std::string_view from, std::string_view to, std::uint64_t size) {
  Append(VersionRecord(inode, from, to, size));
}
void SessionLog::PutDirectory(std::uint64_t number, const SavedDirectory& directory) {
  Append(DirectoryRecord(number, directory));
}
void SessionLog::PutPage(std::uint64_t directory, std::uint64_t page, const SavedPage& begin) {
  Append(PageRecord(directory, page, begin));
}
void SessionLog::RemoveDirectory(std::uint64_t number) { Append(DirectoryGoneRecord(number)); }
void SessionLog::PutContent(std::uint64_t content, const SavedContent& saved) { Append(ContentRecord(content, saved)); }
void SessionLog::PutWrite(std::uint64_t content, Interval range, WallTime modified) {
  Append(WriteRecord(content, range, modified));
}
void SessionLog::RemoveContent(std::uint64_t content) { Append(ContentGoneRecord(content)); }

}  // namespace millrace::vfs
