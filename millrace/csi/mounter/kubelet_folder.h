// Checks that a path from kubelet lies in a part of kubelet's folder that has volumes: pods/ or
// plugins/kubernetes.io/csi/. Without this check, a caller could mount over any folder of the node, or over kubelet's
// own certificates.
#pragma once

#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::csi {

/// A mount point below kubelet's folder.
struct TargetPath {
  UniqueFd parent;   ///< O_PATH
  std::string name;  ///< its last component
  std::string path;  ///< as the mount table has it
};

/// A handle of kubelet's folder. Thread-safe.
class KubeletFolder {
 public:
  /// Errors: kNotFound if there is no such folder.
  static Result<KubeletFolder> Open(const std::string& path);

  /// Opens the parent of `target` component by component, without following links.
  /// Errors: kInvalidArgument if `target` is not below one of these two parts, or if a component is a link; kNotFound
  /// if the parent does not exist.
  Result<TargetPath> Find(const std::string& target) const;

  /// Returns whether this path of the mount table is below kubelet's folder. If that folder is a bind mount itself,
  /// each mount in it appears at a path outside, too.
  bool Contains(const std::string& path) const { return path.starts_with(resolved_); }

 private:
  KubeletFolder(std::string named, std::string resolved, UniqueFd fd)
      : named_(std::move(named)), resolved_(std::move(resolved)), fd_(std::move(fd)) {}
  std::string named_, resolved_;  ///< as given, and without links; both end with a slash
  UniqueFd fd_;
};

}  // namespace millrace::csi
