// The S3 store against the Versity S3 Gateway, where there is one: a second maker's idea of S3.
#include <gtest/gtest.h>

#include "millrace/object/testing/conformance.h"
#include "tests/integration/peers.h"
#include "tests/integration/s3_bucket.h"

namespace millrace::object {
namespace {

/// One server for the whole program.
Result<std::string> GatewayUrl() {
  static Result<std::unique_ptr<peers::Server>> gateway =
      peers::Server::StartVersityGateway({.access_key = kTestAccessKey, .secret_key = kTestSecretKey});
  if (!gateway) return Fail(gateway.error());
  return (*gateway)->url();
}

Result<std::shared_ptr<Store>> GatewayStore() {
  auto bucket = MR_TRY(NewBucket(MR_TRY(GatewayUrl())));
  return std::shared_ptr<Store>(bucket, bucket->store.get());
}

// It keeps keys as paths, gives an object with copied ranges the checksums of their whole sources, and looks an
// object's size, ETag and bytes up by its path one after the other.
INSTANTIATE_TEST_SUITE_P(VersityGateway, StoreConformance,
                         testing::Values(ConformanceSubject{
                             .name = "versitygw",
                             .make = GatewayStore,
                             .lacks = {Capability::kObjectBesideFolder, Capability::kFreeSegments,
                                       Capability::kCopiedRangesChecked, Capability::kReadsOneVersion}}));

}  // namespace
}  // namespace millrace::object
