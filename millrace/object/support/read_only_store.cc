#include "millrace/object/support/read_only_store.h"

#include "millrace/base/result.h"

namespace millrace::object {

void ReadOnlyStore::Put(std::string key, Payload, PutOptions, Call, Done<PutResult> done) {
  done(Fail(WriteRefusal(key)));
}
void ReadOnlyStore::Delete(std::string key, Call, Done<void> done) { done(Fail(WriteRefusal(key))); }
void ReadOnlyStore::DeleteMany(std::vector<std::string>, Call, Done<std::vector<DeleteFailure>> done) {
  done(Fail(WriteRefusal("")));
}
void ReadOnlyStore::Copy(std::string, std::string destination, CopyOptions, Call, Done<PutResult> done) {
  done(Fail(WriteRefusal(destination)));
}
void ReadOnlyStore::CreateMultipart(std::string key, PutOptions, Call, Done<std::string> done) {
  done(Fail(WriteRefusal(key)));
}
void ReadOnlyStore::UploadPart(std::string key, std::string, int, Payload, Call, Done<PartInfo> done) {
  done(Fail(WriteRefusal(key)));
}
void ReadOnlyStore::CopyPart(std::string key, std::string, int, std::string, ByteRange, CopyOptions, Call,
                             Done<PartInfo> done) {
  done(Fail(WriteRefusal(key)));
}
void ReadOnlyStore::CompleteMultipart(std::string key, std::string, std::vector<PartInfo>, PutOptions, Call,
                                      Done<PutResult> done) {
  done(Fail(WriteRefusal(key)));
}
void ReadOnlyStore::AbortMultipart(std::string key, std::string, Call, Done<void> done) {
  done(Fail(WriteRefusal(key)));
}
void ReadOnlyStore::ListParts(std::string key, std::string, Call, Done<std::vector<PartInfo>> done) {
  done(Fail(WriteRefusal(key)));
}
void ReadOnlyStore::ListUploads(std::string prefix, Call, Done<std::vector<UploadInfo>> done) {
  done(Fail(WriteRefusal(prefix)));
}

}  // namespace millrace::object
