// The code of a job as one object: a folder, packed into a tar archive that depends on its content alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/object/location.h"
#include "millrace/object/store.h"

namespace millrace::jobs {

/// The limits of a folder of code. More is a mistake, such as a data set or a virtual environment in it.
struct SourceLimits {
  std::uint64_t bytes = 256'000'000;  ///< of the archive; it is in memory
  std::size_t entries = 20'000;       ///< files, links and folders
};

/// The file of a folder that says what of it is not packed (IgnoreRules).
inline constexpr std::string_view kIgnoreFile = ".millraceignore";

struct SourceArchive {
  std::string bytes;
  std::string name;  ///< "sha256-DIGEST.tar", by the bytes
  std::size_t files = 0;
};

/// Packs a folder. The archive has names, contents, links and whether the owner may execute a file; owners, times and
/// the other rights do not count, so equal folders make equal bytes. Entries are in the order of their names. Leaves
/// out .git, __pycache__ and what kIgnoreFile names.
/// Errors: kNotFound if there is no such folder; kInvalidArgument for a link that leaves the folder, and for what is
/// neither a file, a folder nor a link; kResourceExhausted beyond the limits, with the largest files.
Result<SourceArchive> PackSource(const std::filesystem::path& folder, const SourceLimits& limits = {});

/// Unpacks an archive of PackSource() into `folder`, which is made for this user alone. Nothing is written outside it:
/// names are checked, and links are made after everything else.
/// Errors: kAlreadyExists if there is something at `folder`; kCorrupt if the archive is not one of PackSource(). Then a
/// part of it may be there.
Status UnpackSource(std::string_view archive, const std::filesystem::path& folder, const SourceLimits& limits = {});

/// Returns the digest in the last segment of a key or URL, in hexadecimal; nothing if it names no archive.
std::optional<std::string> SourceDigest(std::string_view url);

/// Puts an archive under its name below `folder` (a key that is empty or ends in '/'), unless it is there. Returns its
/// key. Blocks on requests. Errors: those of the store.
Result<std::string> PutSource(const object::Location& folder, const SourceArchive& archive, const object::Call& call);

/// Gets an archive, checks its bytes against the digest in its name, and unpacks it into `folder`, which it makes.
/// Blocks on requests. Errors: kNotFound if there is no such object; kCorrupt if it has other bytes; those of the store
/// and of UnpackSource().
Status GetSource(const object::Location& archive, const std::filesystem::path& folder, const object::Call& call);

}  // namespace millrace::jobs
