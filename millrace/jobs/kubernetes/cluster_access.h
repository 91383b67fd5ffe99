// The access to a cluster: its address and the caller's credentials. Read from a kubeconfig or from a pod's service
// account.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// ClusterAccess::name of the cluster that this pod is in.
inline constexpr const char* kThisCluster = "this cluster";

/// The address and the credentials of a cluster's API. Secrets are in files of a private folder, which goes with this
/// object, and in `token`.
struct ClusterAccess {
  std::string name;        ///< for messages: the context, or kThisCluster
  std::string server;      ///< "https://host:port", without a slash at its end
  std::string space;       ///< the namespace for objects that name none
  std::string token;       ///< a bearer token; empty: none
  std::string token_file;  ///< instead of `token`: the file is read for each request, because it is renewed
  std::string ca_file;     ///< empty: the system's certificates
  std::string client_certificate_file, client_key_file;
  bool verify_tls = true;
  std::shared_ptr<TempDir> secrets;  ///< has the files that were not files before
};

/// Reads variables of the environment.
using Environment = std::function<std::optional<std::string>(const char*)>;

/// Returns the access that kubectl would use: the files of KUBECONFIG, else ~/.kube/config, else the service account of
/// this pod. `context` names a context of the files; empty: the current one. Runs the context's credential plug-in
/// (`exec`), if it has one, such as `aws eks get-token`.
/// Errors: kNotFound if there is neither; kInvalidArgument if a file is wrong, or has what Millrace does not know.
Result<ClusterAccess> FindCluster(const std::string& context, const Environment& environment);

}  // namespace millrace::jobs
