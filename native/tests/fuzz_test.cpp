// Random programs: each is refused when built, or runs to an answer or an error. The sanitizers are the judges.
#include <cstdlib>
#include <random>

#include "check.hpp"
#include "harness.hpp"

namespace tierup::test {
namespace {

constexpr int64_t kValues = 6, kDims = 6;

struct OutOfBudget {};

int32_t touch_nothing(void* const*, const int64_t*, void*, int64_t, int64_t) { return 0; }

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  int64_t below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_); }

  FunctionText function(int64_t functions) {
    FunctionText text{kValues, kDims, {0, 1}, {2, 3}, {}, {}};
    for (int i = 0; i < 12; ++i) text.dim_code.push_back(dim_instruction());
    for (int i = 0; i < 24; ++i) {
      // A jump may go backwards, but only to a call-out, which has a budget.
      text.steps.push_back({3, 0, 1, below(kValues), 1, below(kValues)});
      text.steps.push_back(step(functions));
    }
    return text;
  }

 private:
  // Mostly sound, now and then anything at all.
  int64_t operand(int64_t limit) { return below(2000) == 0 ? below(9) - 4 : below(limit); }
  int64_t value() { return operand(kValues); }
  int64_t dim() { return operand(kDims); }
  int64_t dtype() { return below(4) == 0 ? below(30) : 7; }

  int64_t literal() {
    static constexpr int64_t interesting[] = {0, 1, 2, 3, 64, 128, -1, -2, 1000, INT64_MAX, INT64_MIN};
    return interesting[below(11)];
  }

  std::array<int64_t, 5> dim_instruction() {
    const int64_t op = below(3) == 0 ? 0 : operand(kDimOps);
    if (op == 0) return {0, dim(), literal(), 0, 0};
    if (op == 15) return {15, dim(), dim(), 64, 0};
    if (op == 13 || op == 14 || op == 18) return {op, dim(), value(), below(4) - 1, 0};
    return {op, dim(), dim(), dim(), dim()};
  }

  std::vector<int64_t> step(int64_t functions) {
    const int64_t opcode = operand(19), begin = below(12);
    const int64_t target = 2 * operand(25);  // always a call-out, or the end
    switch (opcode) {
      case 0: return {0, begin, begin + below(13 - begin)};
      case 1: {
        const int64_t place = below(2);
        return {1, value(), dtype(), place, place == 0 ? -1 : dim(), 2, dim(), dim()};
      }
      case 2: return {2, value(), operand(2)};
      case 3: return {3, 0, 2, value(), -1, 2, value(), -1};
      case 4: return {4, operand(2), 1, value(), 1, dim(), below(2) == 0 ? -1 : dim(), dim(), dim()};
      case 8: return {8, target};
      case 9: return {9, value(), target};
      case 10: return {10, dim(), target};
      case 11: return {11, operand(functions), 2, value(), value(), 2, value(), -1};
      case 12: return {12, value(), below(2) == 0 ? 7 : 9, dim()};
      case 13: return {13, value(), value(), below(4) - 1, dim()};
      case 15: return {15, value(), value(), below(4) - 1, below(2), dtype(), 1, dim()};
      case 7:
      case 16: return {opcode, operand(kDims)};
      case 17: return {17, value(), operand(2)};
      case 18: return view();
      default: return {opcode, value(), value()};
    }
  }

  std::vector<int64_t> view() {
    std::vector<int64_t> text = {18, value(), value(), below(4)};
    for (int64_t i = 0; i < text[3]; ++i) text.push_back(dim());
    return text;
  }

  std::mt19937 random_;
};

// Not dense, whatever its shape.
Value unaligned_scalar() {
  const Ref<Tensor> both = int64s({2}, {1, 2}), scalar = Tensor::make(kI64, {});
  scalar->data = both->data + 1;
  scalar->storage = both->storage;
  return scalar;
}

Value some_value(Generator& random, int& alive) {
  switch (random.below(5)) {
    case 0: return int64s({2, 3}, {1, 2, 3, 4, 5, 6});
    case 1: return boolean(random.below(2) == 0);
    case 2: return floats({0, 3}, {});
    case 3: return unaligned_scalar();
    default: return Ref<Token>(new Token(alive));
  }
}

// Keeps random sizes from using all memory: a block larger than this is what bad_alloc is for.
bool is_modest(const FunctionText& text) {
  for (const auto& instruction : text.dim_code) {
    if (instruction[0] == 3) return false;  // products of sizes
  }
  return true;
}

struct Tally {
  int refused = 0, answered = 0, failed = 0;
};

void run_one(uint32_t seed, Tally& tally) {
  Generator random(seed);
  int alive = 0, budget = 200;
  {
    Script script;
    script.functions = {random.function(2), random.function(2)};
    if (!is_modest(script.functions[0]) || !is_modest(script.functions[1])) return;
    script.callouts = {[&](std::span<Object* const>, std::span<Value* const> outs) {
      if (--budget < 0) throw OutOfBudget();
      if (random.below(2) == 0 && outs[0] != nullptr) *outs[0] = some_value(random, alive);
    }};
    script.constants = {some_value(random, alive), int64s({3}, {2, 0, 1})};
    script.kernels = {touch_nothing, nullptr};
    std::vector<Value> inputs = {some_value(random, alive), some_value(random, alive)};
    try {
      script.run(std::move(inputs));
      ++tally.answered;
    } catch (const InvalidProgram&) {
      ++tally.refused;
    } catch (const CallError& error) {
      ++tally.failed;
      CHECK(std::string(error.what()).starts_with("function "));
    } catch (const std::bad_alloc&) {
      ++tally.failed;
    } catch (const OutOfBudget&) {
      ++tally.answered;
    }
  }
  CHECK_EQUAL(alive, 0);
}

#if defined(__SANITIZE_THREAD__)
constexpr uint32_t kPrograms = 2000;  // one thread, many accesses: the other builds are the ones that matter here
#else
constexpr uint32_t kPrograms = 20000;
#endif

TEST(random_programs) {
  Tally tally;
  for (uint32_t seed = 0; seed < kPrograms; ++seed) run_one(seed, tally);
  // All three ends have to occur, or the generator has gone stale.
  CHECK(tally.refused > 50);
  CHECK(tally.failed > 50);
  CHECK(tally.answered > 50);
}

}  // namespace
}  // namespace tierup::test
