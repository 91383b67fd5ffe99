// The settings of an endpoint from options, environment and profile, in the order of the AWS command line.
#pragma once

#include <optional>
#include <string>

#include "millrace/object/connect_options.h"
#include "millrace/object/s3/credentials/profile.h"

namespace millrace::object::s3 {

/// Returns whether "host[:port]" is on the loopback interface of this machine.
bool IsLoopback(std::string_view authority);

struct Settings {
  std::string scheme;     ///< "https" or "http"
  std::string authority;  ///< host, with the port unless it is the scheme's default
  std::string base_path;  ///< "" or "/prefix", for endpoints below a path
  bool aws = false;       ///< the endpoint is Amazon's for `region`; other regions have other hosts
  bool path_style = true;
  bool loopback = false;
  std::string region, profile, ca_bundle;
  bool no_sign_request = false, request_payer = false;
  int max_attempts = 10;
  /// Whether checksums of uploads, and of downloads, are left out where S3 does not require them.
  bool checksums_when_required = false, validation_when_required = false;
  std::optional<Duration> first_contact;      ///< see ConnectOptions
  std::string customer_key, copy_source_key;  ///< secrets, see ConnectOptions
  Attributes new_objects;
  std::string expected_bucket_owner;

  /// Takes each setting from the options, else from AWS_* variables, else from the profile, else from the defaults.
  /// Errors: kInvalidArgument for impossible values and for a profile that does not exist.
  static Result<Settings> Resolve(const ConnectOptions& options, const Profiles& profiles,
                                  const Environment& environment);

  /// The name of the endpoint in data that outlives the process. The same for all of Amazon's regions, because they
  /// share bucket names.
  std::string Identity() const { return aws ? "s3:/" : scheme + "://" + authority + base_path; }

  /// The destination of a request.
  struct Address {
    std::string scheme, host;
    std::string path;  ///< encoded; no trailing slash unless it is the whole path
    std::string Url(std::string_view query) const {
      return scheme + "://" + host + path + (query.empty() ? "" : "?") + std::string(query);
    }
  };
  /// The address of a redirect. No value unless it is part of the endpoint: the same scheme, and the same host or one
  /// below it (for Amazon: any of Amazon's hosts). Requests carry authority, so a redirect must not send them
  /// elsewhere.
  std::optional<Address> AddressOfRedirect(std::string_view location) const;
  /// Checks whether this endpoint has a host for the bucket. Errors: kInvalidArgument for an access point at an
  /// endpoint whose host is a number.
  Status CheckBucket(std::string_view bucket) const;
  /// The address of a key, of a bucket (empty key) or of the service (empty bucket). The bucket may be the ARN of an
  /// access point, which has a host of its own: Amazon's, or one below the endpoint's.
  /// REQUIRES: CheckBucket(bucket), for an ARN.
  Address AddressOf(std::string_view bucket, std::string_view key, std::string_view bucket_region) const;
};

}  // namespace millrace::object::s3
