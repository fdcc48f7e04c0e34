"""Pictures that tasks, training corpora and studies draw: charts, code, text, screens, shapes, clips."""
