// Checks and conversions of CSI requests that several services need.
#pragma once

#include <google/protobuf/map.h>

#include <map>
#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::csi {

inline std::map<std::string, std::string> ToMap(const google::protobuf::Map<std::string, std::string>& map) {
  return {map.begin(), map.end()};
}

/// Errors: kInvalidArgument unless `given`.
inline Status Require(bool given, std::string_view what) {
  if (given) return {};
  return Fail(Code::kInvalidArgument, "the request has no {}", what);
}

/// Errors: kInvalidArgument if the capability is not that of a file system.
template <class Capability>
Status RequireFileSystem(const Capability& capability) {
  if (capability.has_mount()) return {};
  return Fail(Code::kInvalidArgument, "volumes of buckets are file systems; volumeMode: Block is not supported");
}

}  // namespace millrace::csi
