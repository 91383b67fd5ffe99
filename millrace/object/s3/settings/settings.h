// How to reach an endpoint, put together from options, environment and profile, in the order of the AWS command line.
#pragma once

#include <optional>
#include <string>

#include "millrace/object/connect_options.h"
#include "millrace/object/s3/settings/profile.h"

namespace millrace::object::s3 {

/// Is the "host[:port]" this machine's own loopback interface?
bool IsLoopback(std::string_view authority);

struct Settings {
  std::string scheme;     ///< "https" or "http"
  std::string authority;  ///< host, with the port unless it is the scheme's own
  std::string base_path;  ///< "" or "/prefix", for endpoints below a path
  bool aws = false;       ///< the endpoint is Amazon's own for `region`: other regions have other hosts
  bool path_style = true;
  bool loopback = false;
  std::string region, profile, ca_bundle;
  bool no_sign_request = false, request_payer = false;
  int max_attempts = 10;
  std::string customer_key, copy_source_key;  ///< secrets, see ConnectOptions

  /// For options, then AWS_* variables, then the profile's settings, then defaults. Fails with kInvalidArgument on
  /// values that cannot be and on a profile that does not exist.
  static Result<Settings> Resolve(const ConnectOptions& options, const Profiles& profiles,
                                  const Surroundings& surroundings);

  /// The endpoint, for what outlives the process; the same for all of Amazon's regions, which share names of buckets.
  std::string Identity() const { return aws ? "s3:/" : scheme + "://" + authority + base_path; }

  /// Where a bucket's requests go. An empty bucket stands for the service.
  struct Place {
    std::string scheme, host;
    std::string path;  ///< encoded; no trailing slash unless it is all of it
    std::string Url(std::string_view query) const {
      return scheme + "://" + host + path + (query.empty() ? "" : "?") + std::string(query);
    }
  };
  /// Where a redirect leads; nothing unless that is part of the endpoint: the same scheme, and its host or one below it
  /// (with Amazon's own: any of Amazon's). Requests carry the right to act, so they must not be led elsewhere.
  std::optional<Place> PlaceOf(std::string_view location) const;
  Place Locate(std::string_view bucket, std::string_view key, std::string_view bucket_region) const;
};

}  // namespace millrace::object::s3
