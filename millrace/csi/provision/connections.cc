#include "millrace/csi/provision/connections.h"

#include <algorithm>

#include "millrace/object/open/open.h"

namespace millrace::csi {

Result<std::shared_ptr<object::Connection>> Connections::Get(const Secrets& secrets) {
  constexpr std::size_t kMax = 16;  // each has sockets; a cluster has few StorageClasses
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(entries_, secrets, &Entry::secrets);
  if (found != entries_.end()) {
    Entry entry = std::move(*found);
    entries_.erase(found);
    entries_.push_front(entry);
    return entry.connection;
  }
  object::ConnectOptions options = own_;
  if (!secrets.empty()) {
    options.environment = MR_TRY(IdentityEnvironment(secrets));
    options.no_sign_request = false;
    options.profile.clear();
    options.customer_key.clear();
    options.copy_source_key.clear();
    // The secret's endpoint and region, if it has them.
    if (options.environment.contains("AWS_ENDPOINT_URL")) options.endpoint_url.clear();
    if (options.environment.contains("AWS_REGION")) options.region.clear();
  }
  std::shared_ptr<object::Connection> connection = MR_TRY(object::OpenConnection(std::move(options)));
  entries_.push_front({secrets, connection});
  if (entries_.size() > kMax) entries_.pop_back();
  return connection;
}

}  // namespace millrace::csi
