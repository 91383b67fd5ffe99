// The options by which a user reaches a service: endpoint, identity, limits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/object/object_info.h"

namespace millrace::object {

/// Empty fields come from the environment and the shared AWS files, as in the AWS command line
/// (object/s3/credentials/credentials.h has the order).
struct ConnectOptions {
  std::string endpoint_url;        ///< "http://127.0.0.1:9000"
  std::string region;              ///< "us-east-1"
  std::string profile;             ///< of the shared AWS files
  std::string ca_bundle;           ///< a file of certificates that are trusted
  bool verify_tls = true;          ///< false: whoever answers as the endpoint is believed
  bool no_sign_request = false;    ///< anonymous: public buckets need no credentials
  bool request_payer = false;      ///< this caller pays for requests to buckets of others
  std::optional<bool> path_style;  ///< no value: path style for explicit endpoints, else virtual-host style
  int concurrency = 64;            ///< connections
  int max_attempts = 0;            ///< 0: AWS_MAX_ATTEMPTS, else 10
  /// How long requests wait for an endpoint that has not answered this connection yet: a wrong address is no failure
  /// that passes. Once it has answered, failures are tried again max_attempts times. No value: from the start.
  std::optional<Duration> first_contact;
  std::uint64_t bandwidth = 0;  ///< bytes per second, 0: no limit
  /// SSE-C: a key of the user's own, 32 bytes, or empty. It encrypts everything that is written and decrypts
  /// everything that is read. They are secrets: no message contains them, and a connection that others could listen to
  /// is refused.
  std::string customer_key;
  std::string copy_source_key;  ///< SSE-C: decrypts the sources of copies within the store
  /// What objects get that are written without such attributes of their own.
  Attributes new_objects;
  /// The account that must own the buckets, 12 digits; S3 refuses requests to buckets of another. Empty: any.
  std::string expected_bucket_owner;
  /// Replaces variables of this process's environment for this connection; an empty value hides one. So one process
  /// uses the keys of several identities.
  std::map<std::string, std::string> environment;
  Logger log;  ///< retries, and what credentials are used
};

}  // namespace millrace::object
