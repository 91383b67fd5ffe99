#include "millrace/jobs/source/source_store.h"

#include <optional>

#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/blocking.h"

namespace millrace::jobs {

Result<std::string> PutSource(const object::Location& folder, const SourceArchive& archive, const object::Call& call) {
  std::string key = folder.key + archive.name;
  // Its name stands for its bytes: what is there already is what would be put.
  if (MR_TRY(object::Head(*folder.store, key, call))) return key;
  const auto put = object::Put(*folder.store, key, AsBytes(archive.bytes), {.if_none_match = true}, call);
  if (!put && put.error().code() != Code::kPreconditionFailed) return Fail(put.error());
  return key;
}

Status GetSource(const object::Location& archive, const std::filesystem::path& folder, const object::Call& call) {
  const std::optional<std::string> digest = SourceDigest(archive.key);
  if (!digest) {
    return Fail(Code::kInvalidArgument, "{} is not an archive of run.source: its name should be sha256-DIGEST.tar",
                archive.key);
  }
  const auto content = MR_TRY(object::GetAll(*archive.store, archive.key, SourceLimits{}.bytes, call));
  if (!content) {
    return Fail(Code::kNotFound, "there is no {}: start the job from the folder of its code, which puts it there",
                archive.key);
  }
  if (HexEncode(Sha256(AsBytes(content->bytes))) != *digest) {
    return Fail(Code::kCorrupt,
                "{} has not the bytes that its name stands for: delete it, and start the job from the folder of its "
                "code, which puts it there anew",
                archive.key);
  }
  return UnpackSource(content->bytes, folder);
}

}  // namespace millrace::jobs
