#include "millrace/checkpoint/convert/import_journal.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// An attempt's name has 16 hex digits. The first half depends on the identity alone.
constexpr std::size_t kAttemptDigits = 16, kIdentityDigits = kAttemptDigits / 2;
constexpr std::string_view kEnding = ".json";
/// The most bytes of a note. A note has 6 bytes for each MiB of a file, and a file is a tensor at least.
constexpr std::uint64_t kMaxNoteBytes = 64 * kMiB;

std::string Digits(std::string_view text, std::size_t digits) {
  return HexEncode(Sha256(AsBytes(text))).substr(0, digits);
}

}  // namespace

ImportJournal::ImportJournal(std::string folder, std::string_view identity, std::string_view fence)
    : folder_(std::move(folder)),
      attempt_(Digits(identity, kIdentityDigits) + Digits(fmt::format("{}\n{}", identity, fence), kIdentityDigits)),
      // A name as an attempt has it: garbage collection removes what a killed process leaves there.
      prefix_(fmt::format("{}{}/", folder_, Digits("notes " + attempt_, kAttemptDigits))) {}

bool ImportJournal::IsAttemptOf(std::string_view identity, std::string_view attempt) {
  return attempt.starts_with(Digits(identity, kIdentityDigits));
}

std::string ImportJournal::FileKey(std::size_t file) const {
  return fmt::format("{}file-{:05}{}", prefix_, file, kEnding);
}

std::string ImportJournal::VerifiedKey(const WorkShare& share) const {
  return fmt::format("{}verified-{}-of-{}", prefix_, share.index, share.count);
}

Status ImportJournal::Read(object::Store& store, const object::Call& call) {
  std::vector<std::string> unread;
  const std::string own = fmt::format("{}{}/", folder_, attempt_);
  MR_TRY(object::ListAll(
      store, {.prefix = folder_},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& info : page.objects) {
          if (!info.key.starts_with(prefix_)) {
            has_strangers_ = has_strangers_ || !info.key.starts_with(own);
          } else if (known_.insert(info.key).second && info.key.ends_with(kEnding)) {
            unread.push_back(info.key);
          }
        }
        return true;
      },
      call));
  const std::string start = prefix_ + "file-";
  for (const std::string& key : unread) {
    std::size_t file = 0;
    const char* last = key.data() + key.size() - kEnding.size();
    if (!key.starts_with(start)) continue;
    const auto [end, error] = std::from_chars(key.data() + start.size(), last, file);
    const auto content = MR_TRY(object::GetAll(store, key, kMaxNoteBytes, call));
    if (error != std::errc() || end != last || !content) continue;
    const Manifest note = MR_TRY(Manifest::ParsePart(content->bytes, key));
    const auto meta = note.files.find(RankFile(attempt_, static_cast<int>(file)));
    if (meta == note.files.end()) return Fail(Code::kCorrupt, "{} is no note on file {}; remove it", key, file);
    files_[file] = meta->second;
  }
  return {};
}

Status ImportJournal::Add(object::Store& store, std::size_t file, const FileMeta& meta, const object::Call& call) {
  Manifest note;
  note.attempt = attempt_;
  note.files[RankFile(attempt_, static_cast<int>(file))] = meta;
  MR_TRY(object::Put(store, FileKey(file), AsBytes(note.Serialize()), {}, call));
  known_.insert(FileKey(file));
  files_[file] = meta;
  return {};
}

Status ImportJournal::AddVerified(object::Store& store, const WorkShare& share, const object::Call& call) {
  MR_TRY(object::Put(store, VerifiedKey(share), AsBytes("\n"), {}, call));
  known_.insert(VerifiedKey(share));
  return {};
}

std::uint32_t ImportJournal::Unverified(std::uint32_t count) const {
  std::uint32_t missing = 0;
  for (std::uint32_t index = 0; index < count; ++index) {
    if (!IsVerified({.index = index, .count = count})) ++missing;
  }
  return missing;
}

}  // namespace millrace::checkpoint
