// Compiled steps in a bucket: measured once, read by all later runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"

namespace millrace::train {

/// A compiled step as a JSON document (docs/formats/compiled-steps.md): what it was made for, and what was chosen.
struct CompiledEntry {
  Json made_for;  ///< model, batch, layout, processor, versions
  Json products;  ///< the choices: an array

  /// Returns a hash of both: 64 hexadecimal digits.
  std::string Hash() const;
  Json ToJson() const;
  /// Errors: kCorrupt if the document is not of this form, or its hash is not that of its content. `name` is for
  /// messages.
  static Result<CompiledEntry> FromJson(const Json& document, std::string_view name);
  bool operator==(const CompiledEntry&) const = default;
};

/// A folder of documents, each named by a hash of what it was made for. Not thread-safe; several processes may use the
/// same folder.
class CompileCache {
 public:
  /// `url`: a folder of a bucket or of this machine. Does not read it.
  static Result<CompileCache> Open(object::Connection& connection, std::string_view url);
  /// Returns $XDG_CACHE_HOME/millrace/compiled or its substitute. Errors: those of DefaultCacheFolder.
  static Result<std::string> DefaultUrl();

  /// Returns what was compiled for exactly this; nothing if it is not there. Blocks.
  /// Errors: kCorrupt, as FromJson; those of the store.
  Result<std::optional<CompiledEntry>> Find(const Json& made_for, object::Call call = {});
  /// Keeps the entry, unless there is one for the same already. Returns the one that is there afterwards. Blocks.
  /// Errors: as Find().
  Result<CompiledEntry> Keep(const CompiledEntry& entry, object::Call call = {});

  struct Listed {
    std::string key;
    std::uint64_t size = 0;
    WallTime modified{};
    std::optional<CompiledEntry> entry;  ///< nothing: the document is damaged
  };
  /// Returns all documents, the newest first. Blocks.
  Result<std::vector<Listed>> List(object::Call call = {});
  /// Deletes a document of List(). Blocks.
  Status Remove(const Listed& listed, object::Call call = {});
  /// Returns where the entry is or would be: a URL.
  std::string UrlOf(const Json& made_for) const;

 private:
  CompileCache(object::Location folder, std::string url) : folder_(std::move(folder)), url_(std::move(url)) {}
  std::string KeyOf(const Json& made_for) const;

  object::Location folder_;  ///< the key is empty or ends with "/"
  std::string url_;          ///< is empty or ends with "/"
};

}  // namespace millrace::train
