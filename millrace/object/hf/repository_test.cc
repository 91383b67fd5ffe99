#include "millrace/object/hf/repository.h"

#include <gtest/gtest.h>

namespace millrace::object::hf {
namespace {

TEST(Repository, KindNameAndRevision) {
  const Repository model = Repository::Of("o/m");
  EXPECT_EQ(model.kind, Repository::Kind::kModel);
  EXPECT_EQ(model.id, "o/m");
  EXPECT_EQ(model.revision, "main");
  EXPECT_EQ(model.Describe(), "hf://o/m");
  const Repository data = Repository::Of("datasets/o/d@refs%2Fconvert%2Fparquet");
  EXPECT_EQ(data.kind, Repository::Kind::kDataset);
  EXPECT_EQ(data.id, "o/d");
  EXPECT_EQ(data.revision, "refs/convert/parquet");
  EXPECT_EQ(data.Describe(), "hf://datasets/o/d@refs%2Fconvert%2Fparquet");
  EXPECT_EQ(Repository::Of("spaces/o/s").kind, Repository::Kind::kSpace);
  EXPECT_EQ(Repository::Of("gpt2@main").id, "gpt2");
  EXPECT_FALSE(model.IsCommit());
  EXPECT_TRUE(Repository::Of("o/m@9e26dfeeb6e641a33dae4961196235bdb965b21b").IsCommit());
}

TEST(Repository, AddressesOfTheApi) {
  const Repository model = Repository::Of("o/m@a%2Fb"), data = Repository::Of("datasets/o/d");
  EXPECT_EQ(model.RevisionCall(), "/api/models/o/m/revision/a%2Fb?expand=sha&expand=lastModified");
  EXPECT_EQ(data.TreeCall("c0", "a b/c", true), "/api/datasets/o/d/tree/c0/a%20b%2Fc?recursive=true&expand=false");
  EXPECT_EQ(data.TreeCall("c0", "", false), "/api/datasets/o/d/tree/c0?recursive=false&expand=false");
  EXPECT_EQ(data.PathsCall("c0"), "/api/datasets/o/d/paths-info/c0");
  EXPECT_EQ(model.File("c0", "a b/c?"), "/o/m/resolve/c0/a%20b/c%3F");
  EXPECT_EQ(data.File("c0", "x"), "/datasets/o/d/resolve/c0/x");
}

TEST(Repository, NamesThatNoFileHas) {
  for (const char* path : {"a", "a/b", ".hidden", "a..b"}) EXPECT_TRUE(IsTreePath(path)) << path;
  for (const char* path : {"", "/a", "a/", "a//b", "a/../b", "."}) EXPECT_FALSE(IsTreePath(path)) << path;
}

}  // namespace
}  // namespace millrace::object::hf
