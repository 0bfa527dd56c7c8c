// Publishing kernels while calls run, and many callers at once.
#include <thread>

#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

template <int64_t number>
int32_t write_number(void* const* buffers, const int64_t*, void*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) static_cast<int64_t*>(buffers[0])[i] = number;
  return 0;
}

// Writes slot 0's number over 64 elements and slot 1's into 64 others.
Program two_slots() {
  const FunctionText text{2,
                          1,
                          {},
                          {0, 1},
                          {{0, 0, 64, 0, 0}},
                          {{0, 0, 1},
                           {1, 0, 7, 0, -1, 1, 0},
                           {1, 1, 7, 0, -1, 1, 0},
                           {4, 0, 1, 0, 0, -1, 0, 0},
                           {4, 1, 1, 1, 0, -1, 0, 0}}};
  return build_program({text}, 0, {}, 2);
}

TEST(a_call_sees_one_table) {
  const Program program = two_slots();
  Slots slots(2);
  CallStates states;
  std::atomic<int> loaded{0};
  const auto publish = [&](KernelFn kernel) {
    ++loaded;
    const std::shared_ptr<void> code(&loaded, [](void* count) { --*static_cast<std::atomic<int>*>(count); });
    const std::pair<size_t, Slot> changes[] = {{0, {kernel, code}}, {1, {kernel, code}}};
    slots.publish(changes);
  };
  publish(write_number<1>);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0}, calls{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t) {
    callers.emplace_back([&] {
      while (!stop) {
        const auto table = slots.snapshot();
        FakeHost host;
        std::unique_ptr<CallState> state = states.take();
        std::vector<Value> outs(2);
        run({program, *table, pool(), host, *state}, {}, outs);
        states.give_back(std::move(state));
        const std::vector<int64_t> first = items<int64_t>(outs[0]), second = items<int64_t>(outs[1]);
        const int64_t number = first[0];
        torn += first != std::vector<int64_t>(64, number) || second != first || (number != 1 && number != 2);
        ++calls;
      }
    });
  }
  for (int i = 0; i < 300 || calls < 50; ++i) publish(i % 2 == 0 ? write_number<2> : write_number<1>);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  CHECK_EQUAL(torn.load(), 0);
  CHECK_EQUAL(loaded.load(), 1);  // only the code of the table that is live is still loaded
}

TEST(publishing_changes_only_what_is_named) {
  Slots slots(2);
  const auto before = slots.snapshot();
  const std::pair<size_t, Slot> change[] = {{1, {write_number<1>, nullptr}}};
  slots.publish(change);
  CHECK((*before)[1].kernel == nullptr);
  CHECK((*slots.snapshot())[0].kernel == nullptr);
  CHECK((*slots.snapshot())[1].kernel == write_number<1>);
}

TEST(call_states_are_reused) {
  CallStates states;
  std::unique_ptr<CallState> first = states.take();
  const CallState* address = first.get();
  states.give_back(std::move(first));
  CHECK(states.take().get() == address);
}

}  // namespace
}  // namespace tierup::test
