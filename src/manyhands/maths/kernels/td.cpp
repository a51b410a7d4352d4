// Errors of the values of the actions taken: `maths/losses.py` says the same with torch.

#include <cmath>
#include <cstdint>
#include <cstring>

// `found`: [5, rows], the values of the actions, the errors, their sizes, the losses, their slopes.
extern "C" void td_errors(const float *values, const int64_t *action, const float *goal, float *found,
                          long rows, long actions, int huber) {
    for (long row = 0; row < rows; row++) {
        const float value = values[row * actions + action[row]], error = goal[row] - value;
        const float slope = !huber ? error : error < -1 ? -1 : error > 1 ? 1 : error;
        const float loss = huber ? slope * (error - 0.5f * slope) : 0.5f * (error * error);
        const float each[] = {value, error, std::fabs(error), loss, slope};
        for (int i = 0; i < 5; i++) found[i * rows + row] = each[i];
    }
}

extern "C" void td_gradient(const int64_t *action, const float *slope, const float *weight, float *found,
                            long rows, long actions) {
    std::memset(found, 0, rows * actions * sizeof(float));
    for (long row = 0; row < rows; row++) found[row * actions + action[row]] = -slope[row] * weight[row];
}
