#include "millrace/vfs/staging/session_records.h"

#include <algorithm>
#include <array>

#include "millrace/vfs/staging/staged_record.h"

namespace millrace::vfs {
namespace {

enum class RecordKind : std::uint8_t {
  kHeader = 1,
  kInode,
  kLookups,
  kInodeGone,
  kFile,
  kFileGone,
  kVersion,
  kDirectory,
  kPage,
  kDirectoryGone,
  kContent,
  kWrite,
  kContentGone
};

/// The most bytes of one field. As staging_area.cc: a record of more intervals is a damaged one.
constexpr std::uint64_t kMaxField = 256 * kMiB;
constexpr std::uint64_t kMaxPages = 1 << 24;

class RecordPacker {
 public:
  explicit RecordPacker(RecordKind kind) : text_(1, static_cast<char>(kind)) {}
  RecordPacker& Number(std::uint64_t value) {
    std::array<std::byte, sizeof value> bytes{};
    StoreLittle(bytes.data(), value);
    text_ += AsText(bytes);
    return *this;
  }
  RecordPacker& Time(WallTime time) {
    return Number(static_cast<std::uint64_t>(std::chrono::nanoseconds(time.time_since_epoch()).count()));
  }
  RecordPacker& Text(std::string_view text) {
    Number(text.size());
    text_ += text;
    return *this;
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Reads the fields of a record. After a field that is not there, every field is zero or empty, and ok() is false.
class RecordFields {
 public:
  explicit RecordFields(ByteSpan bytes) : bytes_(bytes) {}
  std::uint64_t Number() {
    if (!ok_ || bytes_.size() < sizeof(std::uint64_t)) return Missing();
    const auto value = LoadLittle<std::uint64_t>(bytes_.data());
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  WallTime Time() { return WallTime(std::chrono::nanoseconds(static_cast<std::int64_t>(Number()))); }
  std::string Text() {
    const std::uint64_t size = Number();
    if (!ok_ || size > kMaxField || size > bytes_.size()) {
      Missing();
      return {};
    }
    std::string text(AsText(bytes_.first(size)));
    bytes_ = bytes_.subspan(size);
    return text;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  std::uint64_t Missing() {
    ok_ = false;
    return 0;
  }
  ByteSpan bytes_;
  bool ok_ = true;
};

void PackPage(RecordPacker& packer, const SavedPage& begin) {
  packer.Text(begin.start_after).Number(begin.held.size());
  for (const SavedPage::HeldFile& held : begin.held) {
    packer.Text(held.name).Text(held.etag).Number(held.size).Time(held.modified);
  }
}

SavedPage UnpackPage(RecordFields& fields) {
  SavedPage begin{.start_after = fields.Text(), .held = {}};
  for (std::uint64_t left = fields.Number(); fields.ok() && left > 0; --left) {
    SavedPage::HeldFile held;
    held.name = fields.Text();
    held.etag = fields.Text();
    held.size = fields.Number();
    held.modified = fields.Time();
    begin.held.push_back(std::move(held));
  }
  return begin;
}

enum ContentFlag : std::uint64_t {
  kUnpublished = 1,
  kAbandoned = 2,
  kAttempted = 4,
  kKept = 8,
  kRecoverable = 16,
  kTimesOutdated = 32,
  kMetadataChanged = 64,
  kForgetTimes = 128
};

std::uint64_t FlagsOf(const SavedContent& saved) {
  return (saved.unpublished ? kUnpublished : 0) | (saved.abandoned ? kAbandoned : 0) |
         (saved.attempted ? kAttempted : 0) | (saved.kept ? kKept : 0) | (saved.recoverable ? kRecoverable : 0) |
         (saved.times_outdated ? kTimesOutdated : 0) | (saved.metadata_changed ? kMetadataChanged : 0) |
         (saved.forget_times ? kForgetTimes : 0);
}

Result<SavedContent> Content(RecordFields& fields) {
  SavedContent saved{.inode = fields.Number(), .staged = fields.Text(), .record = {}};
  const std::uint64_t flags = fields.Number();
  saved.unpublished = (flags & kUnpublished) != 0;
  saved.abandoned = (flags & kAbandoned) != 0;
  saved.attempted = (flags & kAttempted) != 0;
  saved.kept = (flags & kKept) != 0;
  saved.recoverable = (flags & kRecoverable) != 0;
  saved.times_outdated = (flags & kTimesOutdated) != 0;
  saved.metadata_changed = (flags & kMetadataChanged) != 0;
  saved.forget_times = (flags & kForgetTimes) != 0;
  const std::string text = fields.Text();
  if (!fields.ok()) return saved;  // the caller sees it
  saved.record = MR_TRY(DecodeRecord(text, "a session's record")).record;
  return saved;
}

void ApplyInode(InodeId id, RecordFields& fields, SessionState& state) {
  SavedInode& inode = state.inodes[id];
  inode.parent = fields.Number();
  inode.kind = static_cast<NodeKind>(fields.Number());
  inode.lookups = static_cast<std::uint32_t>(fields.Number());
  inode.name = fields.Text();
  state.last_generation = std::max(state.last_generation, static_cast<std::uint32_t>(id >> 32));
}

void ApplyLookups(InodeId id, RecordFields& fields, SessionState& state) {
  const auto lookups = static_cast<std::uint32_t>(fields.Number());
  if (auto inode = state.inodes.find(id); inode != state.inodes.end()) inode->second.lookups = lookups;
}

void ApplyFile(std::uint64_t number, RecordFields& fields, SessionState& state) {
  SavedFile& file = state.files[number];
  file.inode = fields.Number();
  file.request = fields.Number();
  const std::uint64_t access = fields.Number();
  file.reads = (access & 1) != 0;
  file.writes = (access & 2) != 0;
  file.emptied_at_close = (access & 4) != 0;
  file.opener = static_cast<std::int64_t>(fields.Number());
  file.etag = fields.Text();
  file.size = fields.Number();
}

void ApplyVersion(InodeId id, RecordFields& fields, SessionState& state) {
  const std::string from = fields.Text(), to = fields.Text();
  const std::uint64_t size = fields.Number();
  for (auto& [number, file] : state.files) {
    if (file.inode != id || file.etag != from) continue;
    file.etag = to;
    file.size = size;
  }
}

void ApplyDirectory(std::uint64_t number, RecordFields& fields, SessionState& state) {
  SavedDirectory& directory = state.directories[number];
  directory.inode = fields.Number();
  directory.request = fields.Number();
}

Status ApplyPage(std::uint64_t number, RecordFields& fields, SessionState& state) {
  const std::uint64_t page = fields.Number();
  SavedPage begin = UnpackPage(fields);
  auto directory = state.directories.find(number);
  if (directory == state.directories.end()) return {};
  auto& begins = directory->second.begins;
  if (page > begins.size() || page >= kMaxPages) return Fail(Code::kCorrupt, "a directory's page is missing");
  begins.resize(page);  // page 0 begins the directory anew
  begins.push_back(std::move(begin));
  return {};
}

Status ApplyWrite(std::uint64_t number, RecordFields& fields, SessionState& state) {
  const std::uint64_t begin = fields.Number(), end = fields.Number();
  const WallTime modified = fields.Time();
  auto content = state.contents.find(number);
  if (!fields.ok() || content == state.contents.end()) return {};
  if (begin >= end) return Fail(Code::kCorrupt, "an impossible range");
  StagedRecord& staged = content->second.record;
  staged.held.Add(begin, end);
  staged.changed.Add(begin, end);
  staged.size = std::max(staged.size, end);
  staged.modified = modified;
  staged.expected.clear();
  content->second.unpublished = content->second.times_outdated = content->second.forget_times = true;
  return {};
}

}  // namespace

std::string HeaderRecord(std::string_view header) { return RecordPacker(RecordKind::kHeader).Text(header).Take(); }

std::string InodeRecord(InodeId id, const SavedInode& inode) {
  return RecordPacker(RecordKind::kInode)
      .Number(id)
      .Number(inode.parent)
      .Number(static_cast<std::uint64_t>(inode.kind))
      .Number(inode.lookups)
      .Text(inode.name)
      .Take();
}

std::string LookupsRecord(InodeId id, std::uint32_t lookups) {
  return RecordPacker(RecordKind::kLookups).Number(id).Number(lookups).Take();
}

std::string InodeGoneRecord(InodeId id) { return RecordPacker(RecordKind::kInodeGone).Number(id).Take(); }

std::string FileRecord(std::uint64_t number, const SavedFile& file) {
  return RecordPacker(RecordKind::kFile)
      .Number(number)
      .Number(file.inode)
      .Number(file.request)
      .Number((file.reads ? 1U : 0U) | (file.writes ? 2U : 0U) | (file.emptied_at_close ? 4U : 0U))
      .Number(static_cast<std::uint64_t>(file.opener))
      .Text(file.etag)
      .Number(file.size)
      .Take();
}

std::string FileGoneRecord(std::uint64_t number) { return RecordPacker(RecordKind::kFileGone).Number(number).Take(); }

std::string VersionRecord(InodeId inode, std::string_view from, std::string_view to, std::uint64_t size) {
  return RecordPacker(RecordKind::kVersion).Number(inode).Text(from).Text(to).Number(size).Take();
}

std::string DirectoryRecord(std::uint64_t number, const SavedDirectory& directory) {
  return RecordPacker(RecordKind::kDirectory).Number(number).Number(directory.inode).Number(directory.request).Take();
}

std::string PageRecord(std::uint64_t directory, std::uint64_t page, const SavedPage& begin) {
  RecordPacker packer(RecordKind::kPage);
  packer.Number(directory).Number(page);
  PackPage(packer, begin);
  return packer.Take();
}

std::string DirectoryGoneRecord(std::uint64_t number) {
  return RecordPacker(RecordKind::kDirectoryGone).Number(number).Take();
}

std::string ContentRecord(std::uint64_t content, const SavedContent& saved) {
  return RecordPacker(RecordKind::kContent)
      .Number(content)
      .Number(saved.inode)
      .Text(saved.staged)
      .Number(FlagsOf(saved))
      .Text(EncodeRecord(saved.record, ""))
      .Take();
}

std::string WriteRecord(std::uint64_t content, Interval range, WallTime modified) {
  return RecordPacker(RecordKind::kWrite).Number(content).Number(range.begin).Number(range.end).Time(modified).Take();
}

std::string ContentGoneRecord(std::uint64_t content) {
  return RecordPacker(RecordKind::kContentGone).Number(content).Take();
}

Status ApplyRecord(ByteSpan record, SessionState& state) {
  if (record.empty()) return Fail(Code::kCorrupt, "an empty record");
  const auto kind = static_cast<RecordKind>(record.front());
  RecordFields fields(record.subspan(1));
  const std::uint64_t first = kind == RecordKind::kHeader ? 0 : fields.Number();
  switch (kind) {
    case RecordKind::kHeader:
      state.header = fields.Text();
      break;
    case RecordKind::kInode:
      ApplyInode(first, fields, state);
      break;
    case RecordKind::kLookups:
      ApplyLookups(first, fields, state);
      break;
    case RecordKind::kInodeGone:
      state.inodes.erase(first);
      break;
    case RecordKind::kFile:
      ApplyFile(first, fields, state);
      break;
    case RecordKind::kFileGone:
      state.files.erase(first);
      break;
    case RecordKind::kVersion:
      ApplyVersion(first, fields, state);
      break;
    case RecordKind::kDirectory:
      ApplyDirectory(first, fields, state);
      break;
    case RecordKind::kPage:
      MR_TRY(ApplyPage(first, fields, state));
      break;
    case RecordKind::kDirectoryGone:
      state.directories.erase(first);
      break;
    case RecordKind::kContent:
      state.contents.insert_or_assign(first, MR_TRY(Content(fields)));
      break;
    case RecordKind::kWrite:
      MR_TRY(ApplyWrite(first, fields, state));
      break;
    case RecordKind::kContentGone:
      state.contents.erase(first);
      break;
    default:
      return Fail(Code::kCorrupt, "a record of a kind that this version does not know");
  }
  if (!fields.at_end()) return Fail(Code::kCorrupt, "a record of another size");
  return {};
}

}  // namespace millrace::vfs
