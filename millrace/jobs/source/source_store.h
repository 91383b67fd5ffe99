// The archives of run.source in a bucket.
#pragma once

#include <filesystem>
#include <string>

#include "millrace/base/result.h"
#include "millrace/jobs/source/source_archive.h"
#include "millrace/object/location.h"
#include "millrace/object/store.h"

namespace millrace::jobs {

/// Puts an archive under its name below `folder` (a key that is empty or ends in '/'), unless it is there. Returns its
/// key. Blocks on requests. Errors: those of the store.
Result<std::string> PutSource(const object::Location& folder, const SourceArchive& archive, const object::Call& call);

/// Gets an archive, checks its bytes against the digest in its name, and unpacks it into `folder`, which it makes.
/// Blocks on requests. Errors: kNotFound if there is no such object; kCorrupt if it has other bytes; those of the store
/// and of UnpackSource().
Status GetSource(const object::Location& archive, const std::filesystem::path& folder, const object::Call& call);

}  // namespace millrace::jobs
