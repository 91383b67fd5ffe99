#include "millrace/transfer/resume/upload_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/transfer/resume/resume.h"

namespace millrace::transfer {
namespace {

constexpr std::uint64_t kMaxJournalBytes = 64 * kKiB;  // a path, a key and an upload id have a few KiB at most
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

std::optional<UploadJournal::PendingUpload> Parse(const std::string& text) {
  auto lines = Split(text, '\n');
  if (lines.size() < 2 || TextOfLine(lines[0]) != kHeading) return std::nullopt;
  auto body = TextOfLine(lines[1]);
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
  journal.found_ = Parse(MR_TRY(opened->ReadFile(name, kMaxJournalBytes)));
  journal.folder_ = *std::move(opened);
  journal.name_ = name;
  journal.fd_ = std::move(fd);
  return journal;
}

Status UploadJournal::Write(const PendingUpload& entry) {
  if (!fd_) return {};
  Json json = {{"source", entry.source}, {"part_bytes", entry.part_bytes}, {"upload_id", entry.upload_id}};
  std::string text = JournalLine(kHeading) + JournalLine(DumpJson(json));
  if (ftruncate(fd_.get(), 0) != 0) return Fail(ErrnoError(errno, "emptying " + name_));
  return WriteFully(fd_.get(), AsBytes(text), 0, name_);
}

void UploadJournal::Forget() {
  if (fd_) (void)folder_->Remove(name_);
  fd_.Reset();
  found_.reset();
}

}  // namespace millrace::transfer
