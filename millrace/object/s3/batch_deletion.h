// Deletes any number of keys, a thousand in one request. Internal to this module.
#pragma once

#include <string>
#include <vector>

#include "millrace/object/s3/bucket_client.h"

namespace millrace::object::s3 {

/// As Store::DeleteMany and Store::DeleteVersions; a name without a version is a key. Sends batches of names, a few at
/// a time, and sends names again that failed for the moment.
void DeleteInBatches(BucketClient& bucket, std::vector<VersionName> names, Call call,
                     Done<std::vector<DeleteFailure>> done);

}  // namespace millrace::object::s3
