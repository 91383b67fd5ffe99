#include "millrace/transfer/local/upload_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/transfer/local/resume.h"

namespace millrace::transfer {
namespace {

// A path, a key and an upload id have a few KiB at most. Each of 10,000 parts has a line of at most 240 bytes.
constexpr std::uint64_t kMaxJournalBytes = 4 * kMiB;
constexpr char kHeading[] = "millrace-upload 1";
constexpr std::string_view kSuffix = ".upload";
constexpr std::size_t kDigestBytes = 16;  // of SHA-256: enough that two destinations never share a name

NameForm UploadNameForm(std::string_view name) {
  const bool ours =
      name.ends_with(kSuffix) && IsHexName(name.substr(0, name.size() - kSuffix.size()), 2 * kDigestBytes);
  return ours ? NameForm::kFile : NameForm::kForeign;
}

constexpr ManagedFolder::Format kTransfersFormat = {
    .purpose = "transfers",
    .version = 1,
    .role = {.what = "the folder of interrupted uploads", .cure = "set XDG_STATE_HOME to another place"},
    .legacy_file = "",
    .name_form = &UploadNameForm};

/// Returns whether `name` still leads to the open file `fd`.
bool Leads(const ManagedFolder& folder, const std::string& name, int fd) {
  struct stat ours{}, named{};
  return ::fstat(fd, &ours) == 0 && ::fstatat(folder.fd(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

std::optional<UploadJournal::PendingUpload> ParseHead(std::string_view heading, std::string_view line) {
  if (TextOfLine(heading) != kHeading) return std::nullopt;
  auto body = TextOfLine(line);
  auto json = body ? ParseJson(*body, "upload journal") : Fail(Code::kCorrupt, "damaged");
  if (!json || !json->is_object()) return std::nullopt;
  UploadJournal::PendingUpload entry;
  for (auto [name, field] : {std::pair("source", &entry.source), std::pair("upload_id", &entry.upload_id)}) {
    auto found = json->find(name);
    if (found == json->end() || !found->is_string()) return std::nullopt;
    *field = found->get<std::string>();
  }
  auto bytes = json->find("part_bytes");
  if (bytes == json->end() || !bytes->is_number_unsigned()) return std::nullopt;
  entry.part_bytes = bytes->get<std::uint64_t>();
  return entry;
}

std::string LineOf(std::size_t index, const UploadJournal::HashedPart& part) {
  return JournalLine(fmt::format("{} {:08x} {}", index, part.crc32c, HexEncode(AsBytes(part.hash_state))));
}

/// Returns nothing if this is not the line of part `index`.
std::optional<UploadJournal::HashedPart> ParsePart(std::string_view line, std::size_t index) {
  const auto text = TextOfLine(line);
  const auto fields = text ? Split(*text, ' ') : std::vector<std::string_view>();
  if (fields.size() != 3 || fields[0] != std::to_string(index)) return std::nullopt;
  UploadJournal::HashedPart part;
  const char* const begin = fields[1].data();
  const char* const end = begin + fields[1].size();
  if (std::from_chars(begin, end, part.crc32c, 16).ptr != end) return std::nullopt;
  const auto state = HexDecode(fields[2]);
  if (!state) return std::nullopt;
  part.hash_state = AsText(*state);
  return part;
}

/// What a journal says, and the length of the lines that say it.
struct ParsedJournal {
  std::optional<UploadJournal::PendingUpload> entry;
  std::uint64_t bytes = 0;
};

ParsedJournal Parse(const std::string& text) {
  const auto lines = Split(text, '\n');
  ParsedJournal parsed;
  if (lines.size() > 2) parsed.entry = ParseHead(lines[0], lines[1]);
  if (!parsed.entry) return {};
  parsed.bytes = lines[0].size() + lines[1].size() + 2;
  for (std::size_t i = 2; i + 1 < lines.size(); ++i) {  // the last one has no line feed
    auto part = ParsePart(lines[i], i - 2);
    if (!part) break;
    parsed.entry->hashed.push_back(*std::move(part));
    parsed.bytes += lines[i].size() + 1;
  }
  return parsed;
}

}  // namespace

Result<UploadJournal> UploadJournal::Open(const std::string& folder, const std::string& destination) {
  UploadJournal journal;
  if (folder.empty()) return journal;
  auto opened = ManagedFolder::Open(folder, kTransfersFormat);
  // Other users may write to the folder: for example, root runs this with a user's HOME.
  if (!opened && opened.error().code() == Code::kPermissionDenied) return journal;
  if (!opened) return Fail(opened.error());
  const Sha256Digest digest = Sha256(AsBytes(destination));
  const std::string name = fmt::format("{}{}", HexEncode(ByteSpan(digest).first(kDigestBytes)), kSuffix);
  UniqueFd fd = MR_TRY(opened->OpenFile(name, O_RDWR | O_CREAT));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !Leads(*opened, name, fd.get())) return journal;
  ParsedJournal parsed = Parse(MR_TRY(opened->ReadFile(name, kMaxJournalBytes)));
  journal.entry_ = std::move(parsed.entry);
  journal.bytes_ = parsed.bytes;
  journal.folder_ = *std::move(opened);
  journal.name_ = name;
  journal.fd_ = std::move(fd);
  if (ftruncate(journal.fd_.get(), static_cast<off_t>(journal.bytes_)) != 0) {
    return Fail(ErrnoError(errno, "shortening " + name));
  }
  return journal;
}

Status UploadJournal::Write(PendingUpload entry) {
  entry_ = std::move(entry);
  if (!fd_) return {};
  const Json json = {{"source", entry_->source}, {"part_bytes", entry_->part_bytes}, {"upload_id", entry_->upload_id}};
  std::string text = JournalLine(kHeading) + JournalLine(DumpJson(json));
  for (std::size_t i = 0; i < entry_->hashed.size(); ++i) text += LineOf(i, entry_->hashed[i]);
  if (ftruncate(fd_.get(), 0) != 0) return Fail(ErrnoError(errno, "emptying " + name_));
  bytes_ = text.size();
  return WriteFully(fd_.get(), AsBytes(text), 0, name_);
}

Status UploadJournal::Append(HashedPart part) {
  const std::string line = LineOf(entry_->hashed.size(), part);
  entry_->hashed.push_back(std::move(part));
  if (!fd_) return {};
  MR_TRY(WriteFully(fd_.get(), AsBytes(line), bytes_, name_));
  bytes_ += line.size();
  return {};
}

void UploadJournal::Forget() {
  if (fd_) (void)folder_->Remove(name_);
  fd_.Reset();
  entry_.reset();
}

}  // namespace millrace::transfer
