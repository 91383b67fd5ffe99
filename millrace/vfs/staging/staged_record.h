// Records of staged files as text: docs/formats/staging.md.
#pragma once

#include <string>
#include <string_view>

#include "millrace/vfs/staging/staging_area.h"

namespace millrace::vfs {

std::string EncodeRecord(const StagedRecord& record, std::string_view target);

struct DecodedRecord {
  std::string target;
  StagedRecord record;
};
/// Parses and checks a record, sizes and ranges included. `what` names it in errors. Errors: kCorrupt if the text is
/// damaged; kUnsupported if it has a later format.
Result<DecodedRecord> DecodeRecord(std::string_view text, std::string_view what);

/// Checks that all keys of a record are below `prefix` (CheckConfined): those of the file, its base and its upload.
/// Errors: kCorrupt, naming `what`.
Status CheckKeys(const StagedRecord& record, const std::string& prefix, std::string_view what);

}  // namespace millrace::vfs
