#include "millrace/checkpoint/save/local_folder.h"

#include <filesystem>

#include "millrace/base/files/managed_folder.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/local/file_store.h"

namespace millrace::checkpoint {
namespace {

/// Hex digits of a run's folder: docs/formats/checkpoint.md, "The local tier".
constexpr std::size_t kRunDigits = 16;

/// Classifies a name in the folder of local checkpoints. Allowed are folders of runs (16 hex digits), the machine's
/// token, and two temporary names while a rank creates the token: the token's name with "-" and 16 hex digits, and the
/// name that WriteFileAtomic adds to that.
NameForm LocalTierNameForm(std::string_view name) {
  constexpr std::string_view kToken = kMachineToken, kTemporary = ".tmp";
  if (IsHexName(name, kRunDigits)) return NameForm::kFolder;
  if (name == kToken) return NameForm::kFile;
  if (!name.starts_with(kToken) || name.size() < kToken.size() + 1 + kRunDigits) return NameForm::kForeign;
  name.remove_prefix(kToken.size());
  const std::string_view made = name.substr(0, 1 + kRunDigits), rest = name.substr(made.size());
  const bool whole = rest.empty() || (rest.starts_with('.') && rest.ends_with(kTemporary) &&
                                      rest.size() == 1 + kRunDigits + kTemporary.size());
  return made.starts_with('-') && IsHexName(made.substr(1), kRunDigits) && whole ? NameForm::kFile : NameForm::kForeign;
}

constexpr ManagedFolder::Format kLocalTierFormat = {
    .purpose = "checkpoints",
    .version = 1,
    .role = {.what = "the folder of local checkpoints", .cure = "choose another one (checkpoint.local.path)"},
    .legacy_file = "",
    .name_form = &LocalTierNameForm};

}  // namespace

Result<object::Location> LocateLocal(const LocalTierOptions& tier, std::string_view url) {
  if (tier.path.empty()) return Fail(Code::kInvalidArgument, "the folder of the local tier has no name");
  if (tier.copies < 1)
    return Fail(Code::kInvalidArgument, "the local tier has {} copies: it must be at least 1", tier.copies);
  if (tier.keep < 1) return Fail(Code::kInvalidArgument, "the local tier keeps {}: it must be at least 1", tier.keep);
  auto opened = ManagedFolder::Open(tier.path, kLocalTierFormat);
  const auto refuses = [](Code code) { return code == Code::kPermissionDenied || code == Code::kInvalidArgument; };
  if (!opened && refuses(opened.error().code())) return Fail(opened.error());
  while (url.ends_with('/')) url.remove_suffix(1);
  const std::string run = HexEncode(ByteSpan(Sha256(AsBytes(url))).first(kRunDigits / 2));
  const std::string folder = std::filesystem::absolute(tier.path).lexically_normal() / run;
  return object::Location{MR_TRY(object::OpenFileStore({.root = "/", .durable = false})), folder.substr(1)};
}

}  // namespace millrace::checkpoint
