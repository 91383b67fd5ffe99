// Media types of files by the extensions of their names.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// A table of media types. Common extensions have the same type on every machine. All others have the type of the
/// machine's own tables, if there is one. Immutable: thread-safe.
class ContentTypes {
 public:
  /// Reads tables in the form of shared-mime-info (globs2) or of Apache (mime.types); an earlier one wins. Leaves out
  /// tables that cannot be read or are longer than 4 MiB.
  explicit ContentTypes(const std::vector<std::filesystem::path>& tables);

  /// Returns the table with the files of this machine. They are read at the first call.
  static const ContentTypes& OfSystem();

  /// Returns "text/html" for "a/index.HTML"; empty if the type is not known.
  std::string_view Of(std::string_view name) const;

 private:
  void Read(std::string_view table);

  std::map<std::string, std::string, std::less<>> types_;  ///< by extension, in lower case
};

}  // namespace millrace
