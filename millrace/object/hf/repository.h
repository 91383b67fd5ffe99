// One repository of the hub at one revision: what a URL names, and the addresses of the hub's API for it.
#pragma once

#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::object::hf {

struct Repository {
  enum class Kind { kModel, kDataset, kSpace };
  Kind kind = Kind::kModel;
  std::string id;                 ///< "OWNER/NAME", or "gpt2"
  std::string revision = "main";  ///< a branch, a tag or a commit; decoded
  std::string text;               ///< as in the URL: "datasets/OWNER/NAME@REVISION"

  /// Returns the repository that an hf:// URL's Url::bucket names. REQUIRES: ParseUrl() made the URL.
  static Repository Of(std::string_view bucket);

  /// "hf://datasets/OWNER/NAME@REVISION"
  std::string Describe() const { return "hf://" + text; }
  /// Returns whether the revision is the full name of a commit.
  bool IsCommit() const;
  std::string_view KindName() const;  ///< "model", "data set", "space"

  // Paths below the endpoint.
  std::string Page() const;  ///< for people: "/datasets/OWNER/NAME"
  std::string RevisionCall() const;
  std::string TreeCall(std::string_view commit, std::string_view folder, bool recursive) const;
  std::string PathsCall(std::string_view commit) const;
  std::string File(std::string_view commit, std::string_view path) const;

 private:
  std::string Api(std::string_view call, std::string_view revision) const;
};

/// Returns whether git can have a file or folder of this name: no segment is empty, "." or "..".
bool IsTreePath(std::string_view path);

}  // namespace millrace::object::hf
