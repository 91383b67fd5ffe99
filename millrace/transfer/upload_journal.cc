#include "millrace/transfer/upload_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "millrace/base/digest.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/transfer/resume.h"

namespace millrace::transfer {
namespace {

constexpr std::uint64_t kMaxEntry = 64 * kKiB;
constexpr char kHeading[] = "millrace-upload 1";

std::optional<UploadJournal::Entry> Parse(const std::string& text) {
  auto lines = Split(text, '\n');
  if (lines.size() < 2 || TextOfLine(lines[0]) != kHeading) return std::nullopt;
  auto body = TextOfLine(lines[1]);
  auto json = body ? ParseJson(*body, "upload journal") : Fail(Code::kCorrupt, "damaged");
  if (!json || !json->is_object()) return std::nullopt;
  UploadJournal::Entry entry;
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
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Fail(ErrnoError(error.value(), "creating folder " + folder));
  Sha256Digest digest = Sha256(AsBytes(destination));
  journal.path_ = (std::filesystem::path(folder) / (HexEncode(ByteSpan(digest).first(16)) + ".upload")).string();
  UniqueFd fd = MR_TRY(OpenFile(journal.path_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  struct stat ours, named;
  bool mine = flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && fstat(fd.get(), &ours) == 0 &&
              stat(journal.path_.c_str(), &named) == 0 && ours.st_ino == named.st_ino;
  if (!mine) return journal;
  journal.found_ = Parse(MR_TRY(ReadFile(journal.path_, kMaxEntry)));
  journal.fd_ = std::move(fd);
  return journal;
}

Status UploadJournal::Write(const Entry& entry) {
  if (!fd_) return {};
  Json json = {{"source", entry.source}, {"part_bytes", entry.part_bytes}, {"upload_id", entry.upload_id}};
  std::string text = JournalLine(kHeading) + JournalLine(DumpJson(json));
  if (ftruncate(fd_.get(), 0) != 0) return Fail(ErrnoError(errno, "emptying " + path_));
  return WriteFully(fd_.get(), AsBytes(text), 0, path_);
}

void UploadJournal::Forget() {
  if (fd_) unlink(path_.c_str());
  fd_.Reset();
  found_.reset();
}

}  // namespace millrace::transfer
