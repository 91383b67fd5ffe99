// The writing half of a store that is only read from: every write is refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/object/store.h"

namespace millrace::object {

/// A base of stores that cannot be written to. Writes fail with the error that WriteRefusal() gives. Thread-safe if
/// WriteRefusal() is.
class ReadOnlyStore : public Store {
 public:
  void Put(std::string key, Payload body, PutOptions options, Call call, Done<PutResult> done) override;
  void Delete(std::string key, Call call, Done<void> done) override;
  void DeleteMany(std::vector<std::string> keys, Call call, Done<std::vector<DeleteFailure>> done) override;
  void Copy(std::string source, std::string destination, CopyOptions options, Call call, Done<PutResult> done) override;
  void CreateMultipart(std::string key, PutOptions options, Call call, Done<std::string> upload_id) override;
  void UploadPart(std::string key, std::string upload_id, int number, Payload body, Call call,
                  Done<PartInfo> done) override;
  void CopyPart(std::string key, std::string upload_id, int number, std::string source, ByteRange range,
                CopyOptions options, Call call, Done<PartInfo> done) override;
  void CompleteMultipart(std::string key, std::string upload_id, std::vector<PartInfo> parts, PutOptions options,
                         Call call, Done<PutResult> done) override;
  void AbortMultipart(std::string key, std::string upload_id, Call call, Done<void> done) override;
  void ListParts(std::string key, std::string upload_id, Call call, Done<std::vector<PartInfo>> done) override;
  void ListUploads(std::string prefix, Call call, Done<std::vector<UploadInfo>> done) override;

 protected:
  /// Returns the error of a write to `key`, or, if it is empty, of several writes.
  virtual Error WriteRefusal(const std::string& key) const = 0;
};

}  // namespace millrace::object
