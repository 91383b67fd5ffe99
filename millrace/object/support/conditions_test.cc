#include "millrace/object/support/conditions.h"
#include "millrace/base/result.h"

#include <gmock/gmock.h>

#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"
#include "millrace/object/testing/fault_store.h"

namespace millrace::object {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<FaultStore> ServiceNamed(std::string identity) {
  auto store = FaultStore::Create(MakeMemoryStore());
  store->SetIdentity(std::move(identity));
  return store;
}

TEST(ConditionsTest, AServiceIsAskedOnceAndNothingStays) {
  const auto store = ServiceNamed("https://asked-once/bucket");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*ProbeConditions(*store, "runs/a"), ConditionSupport::kHonoured);
  EXPECT_EQ(store->calls(Operation::kPut), 4u);
  EXPECT_EQ(*ProbeConditions(*ServiceNamed("https://asked-once/bucket"), ""), ConditionSupport::kHonoured);
  EXPECT_TRUE(List(*store, {})->objects.empty());
  EXPECT_TRUE(RequireConditions(*store, "", "advice"));
}

TEST(ConditionsTest, AServiceThatIgnoresThemIsNamed) {
  for (const int honoured : {0, 1}) {  // the first of the two, or neither
    const auto store = ServiceNamed(fmt::format("https://ignores-{}/bucket", honoured));
    store->Add({.operation = Operation::kPut, .skip = 1 + honoured, .times = -1, .fault = {.ignore_conditions = true}});
    EXPECT_EQ(*ProbeConditions(*store, "runs"), ConditionSupport::kIgnored);
    const Status required = RequireConditions(*store, "runs", "use another one");
    ASSERT_FALSE(required);
    EXPECT_EQ(required.error().code(), Code::kUnsupported);
    EXPECT_THAT(required.error().ToString(), HasSubstr("If-None-Match"));
    EXPECT_THAT(required.error().ToString(), HasSubstr("use another one"));
    EXPECT_TRUE(List(*store, {})->objects.empty());
  }
}

TEST(ConditionsTest, AServiceWhoseIfMatchNeverHoldsIsNamed) {
  const auto store = ServiceNamed("https://never-holds/bucket");
  store->Add({.operation = Operation::kPut, .skip = 3, .times = -1, .fault = {.code = Code::kPreconditionFailed}});
  EXPECT_EQ(*ProbeConditions(*store, "runs"), ConditionSupport::kNeverHold);
  const Status required = RequireConditions(*store, "runs", "use another one");
  ASSERT_FALSE(required);
  EXPECT_EQ(required.error().code(), Code::kUnsupported);
  EXPECT_THAT(required.error().ToString(), HasSubstr("although the object has this ETag"));
}

TEST(ConditionsTest, WithoutRightsNothingIsKnownAndNothingRefused) {
  const auto store = ServiceNamed("https://no-rights/bucket");
  store->Add({.operation = Operation::kPut, .times = 1, .fault = {.code = Code::kPermissionDenied}});
  EXPECT_EQ(ProbeConditions(*store, "").error().code(), Code::kPermissionDenied);
  EXPECT_TRUE(RequireConditions(*store, "", "advice")) << "and it is asked again";
  EXPECT_EQ(*ProbeConditions(*store, ""), ConditionSupport::kHonoured);
}

TEST(ConditionsTest, FoldersAndMemoryAreNotAsked) {
  const auto store = FaultStore::Create(MakeMemoryStore());
  EXPECT_EQ(*ProbeConditions(*store, ""), ConditionSupport::kHonoured);
  EXPECT_EQ(store->calls(Operation::kPut), 0u);
}

}  // namespace
}  // namespace millrace::object
