// Deletes any number of keys, a thousand in one request. Internal to this module.
#pragma once

#include <string>
#include <vector>

#include "millrace/object/s3/bucket_client.h"

namespace millrace::object::s3 {

/// As Store::DeleteMany. Sends batches of keys, a few at a time, and sends keys again that failed for the moment.
void DeleteInBatches(BucketClient& bucket, std::vector<std::string> keys, Call call,
                     Done<std::vector<DeleteFailure>> done);

}  // namespace millrace::object::s3
