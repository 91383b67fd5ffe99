// How a user reaches a service: endpoint, identity, limits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "millrace/base/log.h"
#include "millrace/object/object_info.h"

namespace millrace::object {

/// Empty fields come from the environment and the shared AWS files, as in the AWS command line
/// (object/s3/credentials/credentials.h has the order).
struct ConnectOptions {
  std::string endpoint_url, region, profile, ca_bundle;
  bool no_sign_request = false;
  bool request_payer = false;
  std::optional<bool> path_style;  ///< no value: path style for explicit endpoints, else virtual-host style
  int concurrency = 64;            ///< connections
  int max_attempts = 0;            ///< 0: AWS_MAX_ATTEMPTS, else 10
  std::uint64_t bandwidth = 0;     ///< bytes per second, 0: no limit
  /// SSE-C: the user's own keys, 32 bytes each, or empty. The first encrypts everything that is written and decrypts
  /// everything that is read; the second decrypts the sources of copies within the store. They are secrets: no message
  /// contains them, and a connection that others could listen to is refused.
  std::string customer_key, copy_source_key;
  /// What objects get that are written without such attributes of their own.
  Attributes new_objects;
  /// The account that must own the buckets, 12 digits; S3 refuses requests to buckets of another. Empty: any.
  std::string expected_bucket_owner;
  /// Replaces variables of this process's environment for this connection; an empty value hides one. So one process
  /// uses the keys of several identities.
  std::map<std::string, std::string> environment;
  Logger log;
};

}  // namespace millrace::object
